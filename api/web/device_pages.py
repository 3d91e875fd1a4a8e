"""HTML pages of device logins: the requesting device, and the form that approves or denies it.

Users who are not signed in enter an API key for that. For signed-in users the page's own form is enough: a form on
another site can't approve for them. What a device says about itself is untrusted text.
"""

from html import escape

from fastapi.responses import HTMLResponse

from api.web.pages import show_complaint, show_page
from shared.models import DeviceAuthorization

CODE_FORM = """
<p>Enter the code that your device shows. The next page says which program requests access.</p>
{complaint}
<form method="get" autocomplete="off">
<label>Code <input class="code" name="user_code" value="{code}" required maxlength="20" autofocus></label>
<button>Continue</button>
</form>
"""
DEVICE_FORM = """
<p>A program asks to act as you, with an API key of its own:</p>
<dl>
<dt>Program, as it calls itself</dt><dd class="client">{client}</dd>
<dt>Software, as it calls itself</dt><dd class="agent">{agent}</dd>
<dt>Sent from</dt><dd class="address">{address}</dd>
<dt>Begun</dt><dd class="begun">{begun}</dd>
<dt>It gets</dt><dd>an API key with all rights of your account, until you revoke it. It expires no later than the key
that you sign in with, and stays valid if that one is revoked.</dd>
</dl>
<p class="wrong"><strong>Deny it if you did not begin this just now,</strong> or if you were sent this code
or this link: the program of another person would get your account.</p>
{complaint}
<form method="post" action="/oauth/device/verify" autocomplete="off">
<label>Code <input class="code" name="user_code" value="{code}" required maxlength="20" readonly></label>
{who}
<button name="decision" value="approve">Approve</button><button name="decision" value="deny">Deny</button>
</form>
"""
KEY = '<label>Your API key <input name="api_key" type="password" required maxlength="500"></label>'
SIGNED_IN = '<p>You are signed in as <strong class="who">{name}</strong>.</p>'
UNKNOWN = "it does not say"


def show_code_form(code: str = "", complaint: str = "", status: int = 200) -> HTMLResponse:
    """The form that asks for a code."""
    filled = CODE_FORM.format(code=escape(code), complaint=show_complaint(complaint))
    return show_page("Approve a device", filled, status)


def show_form(
    code: str, requester: DeviceAuthorization, complaint: str = "", status: int = 200, name: str | None = None
) -> HTMLResponse:
    """The form for the request under a code. `name` is the name of the signed-in user."""
    filled = DEVICE_FORM.format(
        client=escape(requester.client or UNKNOWN),
        agent=escape(requester.user_agent or UNKNOWN),
        address=escape(requester.address or UNKNOWN),
        begun=f"{requester.created_at:%Y-%m-%d %H:%M:%S} UTC",
        code=escape(code),
        complaint=show_complaint(complaint),
        who=KEY if name is None else SIGNED_IN.format(name=escape(name)),
    )
    return show_page("Approve a device", filled, status)


def show_outcome(*, approved: bool) -> HTMLResponse:
    """The page after the user's decision."""
    words = "The device is signed in. You can close this page." if approved else "The device was denied."
    return show_page("Approved" if approved else "Denied", f"<p>{words}</p>")
