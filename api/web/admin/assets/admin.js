// Loads the page again where it stands when something has changed. Without this script the pages work, and stand still.
"use strict";

const live = document.getElementById("live");
let isLoading = false;

// A form that is filled in, and a question that is open, must not vanish.
function isBusy() {
  const focused = document.activeElement;
  return Boolean(document.querySelector("details.confirm[open]") || (focused && focused.matches("input, select")));
}

async function load() {
  if (isLoading || isBusy()) return;
  isLoading = true;
  try {
    const response = await fetch(location.href, {cache: "no-store"});
    if (response.redirected || response.status === 403) return location.reload(); // signed out, or no admin any more
    if (!response.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (isBusy()) return;
    document.querySelector("main").replaceWith(page.querySelector("main"));
    live.textContent = page.getElementById("live").textContent.replace("loaded", "live ·");
  } catch {
    live.textContent = "no connection";
  } finally {
    isLoading = false;
  }
}

const changes = new EventSource("/admin/changes");
changes.addEventListener("change", load);
changes.onopen = () => live.classList.add("on");
changes.onerror = () => live.classList.remove("on");
