"""The page on which a user approves a device's login.

Users who are not signed in enter an API key. For signed-in users the page's own form is enough: a form on another site
can't approve for them.
"""

from html import escape

from fastapi.responses import HTMLResponse

from api.web.html import show_complaint, show_page

FORM = """
<p>A device asks to act as you. Approve it only if you began this, and the device shows the same code.</p>
{complaint}
<form method="post" autocomplete="off">
<label>Code <input class="code" name="user_code" value="{code}" required maxlength="20"></label>
{who}
<button name="decision" value="approve">Approve</button><button name="decision" value="deny">Deny</button>
</form>
"""
KEY = '<label>Your API key <input name="api_key" type="password" required maxlength="500"></label>'
SIGNED_IN = '<p>You are signed in as <strong class="who">{name}</strong>.</p>'


def show_form(code: str, complaint: str = "", status: int = 200, name: str | None = None) -> HTMLResponse:
    """The form, with the code filled in. `name` is the name of the signed-in user."""
    who = KEY if name is None else SIGNED_IN.format(name=escape(name))
    filled = FORM.format(code=escape(code), complaint=show_complaint(complaint), who=who)
    return show_page("Approve a device", filled, status)


def show_outcome(*, approved: bool) -> HTMLResponse:
    """The page after the user's decision."""
    words = "The device is signed in. You can close this page." if approved else "The device was denied."
    return show_page("Approved" if approved else "Denied", f"<p>{words}</p>")
