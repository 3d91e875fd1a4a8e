"""The pages to sign in with an API key, and to sign out."""

from html import escape

from fastapi.responses import HTMLResponse

from api.web.html import show_complaint, show_page

FORM = """
{complaint}
<form method="post" action="/login">
<input type="hidden" name="returnTo" value="{return_to}">
<label>Your API key <input name="api_key" type="password" required maxlength="500" autofocus
autocomplete="current-password"></label>
<button>Sign in</button>
</form>
"""
SIGNED_IN = """
<p>You are signed in as <strong class="who">{name}</strong>.</p>
{links}
<form method="post" action="/logout"><button>Sign out</button></form>
"""


# Pages of Agent Canvas that its menus do not link to.
LINKS = """
<p><a href="/">Continue</a>, or set your <a href="/settings/llm">model</a>,
<a href="/settings/secrets">secrets</a> and <a href="/mcp">MCP servers</a>.</p>
"""


def show_login(return_to: str, complaint: str = "", status: int = 200) -> HTMLResponse:
    """The form that asks for a key."""
    filled = FORM.format(complaint=show_complaint(complaint), return_to=escape(return_to))
    return show_page("Sign in to Agent Workspace", filled, status)


def show_signed_in(name: str, *, with_canvas: bool) -> HTMLResponse:
    """The signed-in user and a sign-out button; `with_canvas` adds links to the web UI."""
    filled = SIGNED_IN.format(name=escape(name), links=LINKS if with_canvas else "")
    return show_page("Agent Workspace", filled)
