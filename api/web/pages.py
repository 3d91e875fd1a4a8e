"""HTML pages of this service: no scripts, no external content, in no frame.

They sign users in with an API key, and sign them out. `api.web.device_pages` has the pages of device logins.
"""

from html import escape

from fastapi.responses import HTMLResponse

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 28rem; margin: 3rem auto; padding: 0 1rem; color: #222 }
label { display: block; margin-top: 1rem } input { font: inherit; width: 100%; padding: .4rem; box-sizing: border-box }
button { font: inherit; margin: 1.5rem .5rem 0 0; padding: .4rem 1rem } .code { font-family: monospace }
.wrong { color: #a00 }
"""


def restrict(**directives: str) -> dict[str, str]:
    """The headers of a page: what a browser may do with it, by a policy of these directives (CSP)."""
    return {
        "Content-Security-Policy": "; ".join(f"{name.replace('_', '-')} {text}" for name, text in directives.items()),
        # With `no-referrer` a browser would send no origin with the page's forms.
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
    }


HEADERS = restrict(
    default_src="'none'",
    style_src="'unsafe-inline'",
    form_action="'self'",
    frame_ancestors="'none'",
    base_uri="'none'",
)


def show_page(title: str, content: str, status: int = 200) -> HTMLResponse:
    """A page. `title` and `content` are HTML, so escape their text."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    page = f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head>'
    return HTMLResponse(f"{page}<body><h1>{title}</h1>{content}</body></html>", status, HEADERS)


def show_complaint(text: str) -> str:
    """The error message of a form; empty if there is none."""
    return f'<p class="wrong" role="alert">{escape(text)}</p>' if text else ""


LOGIN_FORM = """
{complaint}
<form method="post" action="/login">
<input type="hidden" name="returnTo" value="{return_to}">
<label>Your API key <input name="api_key" type="password" required maxlength="500" autofocus
autocomplete="current-password"></label>
<button>Sign in</button>
</form>
"""
LOGIN_STATE = """
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
    filled = LOGIN_FORM.format(complaint=show_complaint(complaint), return_to=escape(return_to))
    return show_page("Sign in to Agent Workspace", filled, status)


def show_signed_in(name: str, *, with_canvas: bool) -> HTMLResponse:
    """The signed-in user and a sign-out button; `with_canvas` adds links to the web UI."""
    filled = LOGIN_STATE.format(name=escape(name), links=LINKS if with_canvas else "")
    return show_page("Agent Workspace", filled)
