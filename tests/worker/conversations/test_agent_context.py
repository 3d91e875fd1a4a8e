"""Tools and prompt additions of the settings, in the body of a conversation's create request."""

from tests.worker.conversations.agent_inputs import inputs
from worker.conversations.agent_request import build_request

CONTEXT = {"system_message_suffix": "Be kind.", "user_message_suffix": "Please.", "load_memory": True}


def test_tools_and_prompt_suffixes_are_passed_on() -> None:
    tools = [{"name": "terminal", "params": {}}]
    nested = {"tools": tools, "agent_context": CONTEXT}
    settings = build_request(inputs(agent_settings=nested, system_message_suffix="Be brief."))["agent_settings"]
    assert settings["tools"] == tools
    assert settings["agent_context"] == CONTEXT | {
        "load_project_skills": True,
        "load_user_skills": False,
        "load_public_skills": False,
        "system_message_suffix": "Be kind.\n\nBe brief.",
    }


def test_planning_agent_has_its_own_tools() -> None:
    settings = build_request(inputs(agent_settings={"tools": []}, agent_type="plan"))["agent_settings"]
    assert [tool["name"] for tool in settings["tools"]] == ["glob", "grep", "planning_file_editor"]


def test_switches_that_the_agent_server_refuses_are_left_out() -> None:
    nested = {"enable_sub_agents": True, "enable_switch_llm_tool": False, "tool_concurrency_limit": 2}
    settings = build_request(inputs(agent_settings=nested))["agent_settings"]
    assert settings["tool_concurrency_limit"] == 2
    assert not settings.keys() & {"enable_sub_agents", "enable_switch_llm_tool", "tools"}
