"""What a conversation can come from."""

from enum import StrEnum


class Trigger(StrEnum):
    """What made somebody start a conversation (wire contract, appendix B)."""

    RESOLVER = "resolver"
    GUI = "gui"
    SUGGESTED_TASK = "suggested_task"
    OPENHANDS_API = "openhands_api"
    SLACK = "slack"
    MICROAGENT_MANAGEMENT = "microagent_management"
    JIRA = "jira"
    JIRA_DC = "jira_dc"
    LINEAR = "linear"
    BITBUCKET = "bitbucket"
    AUTOMATION = "automation"
