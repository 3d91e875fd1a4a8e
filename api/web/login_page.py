"""The page on which a browser is signed in, with an API key, and signed out."""

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


# Pages of Agent Canvas that no menu of it leads to.
LINKS = """
<p><a href="/">Go on</a>, or set your <a href="/settings/llm">model</a>,
<a href="/settings/secrets">secrets</a> and <a href="/mcp">MCP servers</a>.</p>
"""


def show_login(return_to: str, complaint: str = "", status: int = 200) -> HTMLResponse:
    """The form that wants a key."""
    filled = FORM.format(complaint=show_complaint(complaint), return_to=escape(return_to))
    return show_page("Sign in to Agent Workspace", filled, status)


def show_signed_in(name: str, *, with_canvas: bool) -> HTMLResponse:
    """Who is signed in, the way out, and where to go where the web page is served."""
    filled = SIGNED_IN.format(name=escape(name), links=LINKS if with_canvas else "")
    return show_page("Agent Workspace", filled)
