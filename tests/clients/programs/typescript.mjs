// Calls every method of `CloudClient`, and prints their results as one JSON document in the last line.
import { CloudClient } from "@openhands/typescript-client/clients";

const [host, apiKey] = [process.env.URL, process.env.KEY];
const client = new CloudClient({ host, apiKey, proxy: { host, apiKey } });
const results = {};

// Records the value that a method returned, or the status and the text of its error.
async function call(name, ...args) {
  try {
    results[name] = { value: (await client[name](...args)) ?? null };
  } catch (error) {
    results[name] = { rejected: error.status ?? 0, words: String(error) };
  }
  return results[name].value;
}

async function until(ask, condition) {
  for (let tries = 0; tries < 300; tries++) {
    const answer = await ask();
    if (condition(answer)) return answer;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error("the condition was not met in time");
}

async function logIn() {
  const codes = await call("startDeviceFlow");
  const form = new URLSearchParams({ user_code: codes.user_code, api_key: apiKey, decision: "approve" });
  await fetch(codes.verification_uri, { method: "POST", body: form });
  await call("pollForToken", codes.device_code, { interval: codes.interval });
  await call("getCurrentApiKey");
  const { currentOrgId } = await call("getOrganizations");
  await call("getOrganizationMe", currentOrgId);
  client.orgId = currentOrgId;
  results.listProfilesOfOrganization = { value: await client.listProfiles() };
  client.orgId = null;
}

async function changeSettings() {
  await call("saveSettings", {
    agent_settings_diff: { llm: { temperature: 0.5 } },
    conversation_settings_diff: { max_iterations: 55 },
    app_preferences: { language: "de" },
  });
  await call("getSettings");
  await call("getSettingsWithDerivedFields");
  await call("getSettingsSchema");
  await call("getConversationSettingsSchema");
  await call("saveProfile", "first", { include_secrets: true });
  await call("renameProfile", "first", "second");
  await call("activateProfile", "second");
  await call("getProfile", "second");
  await call("listProfiles");
  await call("createSecret", "API_TOKEN", "t", "a token");
  await call("updateSecret", "API_TOKEN", "TOKEN", "another");
  await call("listSecrets");
  await call("deleteSecret", "TOKEN");
}

async function readLists() {
  await call("listSkills");
  await call("searchModels", { limit: 5 });
  await call("searchProviders", { limit: 5 });
  await call("searchRepositories", { provider: "github" });
  await call("getInstallations", { provider: "github" });
  await call("getRepositoryBranches", { provider: "github", repository: "o/r" });
  await call("getSuggestedTasks");
}

async function converse() {
  const request = { initial_message: { role: "user", content: [{ type: "text", text: "Greet." }] }, trigger: "gui" };
  const begun = await call("createConversation", { ...request, sandbox_id: process.argv[2], title: null });
  const task = await until(
    () => call("getConversationStartTask", begun.id),
    (task) => ["READY", "ERROR"].includes(task.status),
  );
  const id = task.app_conversation_id;
  await until(
    () => call("getConversations", [id]),
    ([conversation]) => conversation.execution_status === "finished",
  );
  await call("searchConversations", 5);
  await call("readConversationFile", id, "/workspace/project/greeting.txt");
  await call("switchConversationProfile", id, "second");
  await call("switchConversationAcpModel", id, "m");
  await call("updateConversationPublicFlag", id, true);
  results.downloadConversation = { value: (await call("downloadConversation", id)).size };
  return [id, task.sandbox_id];
}

async function cleanUp(conversationId, sandboxId) {
  const status = (wanted) => until(() => call("getSandboxes", [sandboxId]), ([sandbox]) => sandbox.status === wanted);
  const [sandbox] = await status("RUNNING");
  const { url } = sandbox.exposed_urls.find((one) => one.name === "AGENT_SERVER");
  const session = { authMode: "session-api-key", sessionApiKey: sandbox.session_api_key, hostOverride: url };
  await call("request", { method: "GET", path: "/api/conversations/count", ...session });
  await call("pauseSandbox", sandboxId);
  await status("PAUSED");
  await call("resumeSandbox", sandboxId);
  await status("RUNNING");
  await call("deleteConversation", conversationId);
  await call("deleteProfile", "second");
}

await logIn();
await changeSettings();
await readLists();
await cleanUp(...(await converse()));
const methods = Object.getOwnPropertyNames(CloudClient.prototype);
console.log(JSON.stringify({ methods, results }));
