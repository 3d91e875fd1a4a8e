"""HTML pages of this service: no scripts, no external content, in no frame."""

from html import escape

from fastapi.responses import HTMLResponse

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Cache-Control": "no-store",
    # With `no-referrer` a browser would send no origin with these pages' forms.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 28rem; margin: 3rem auto; padding: 0 1rem; color: #222 }
label { display: block; margin-top: 1rem } input { font: inherit; width: 100%; padding: .4rem; box-sizing: border-box }
button { font: inherit; margin: 1.5rem .5rem 0 0; padding: .4rem 1rem } .code { font-family: monospace }
.wrong { color: #a00 }
"""


def show_page(title: str, content: str, status: int = 200) -> HTMLResponse:
    """A page. `title` and `content` are HTML, so escape their text."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    page = f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head>'
    return HTMLResponse(f"{page}<body><h1>{title}</h1>{content}</body></html>", status, HEADERS)


def show_complaint(text: str) -> str:
    """The error message of a form; empty if there is none."""
    return f'<p class="wrong" role="alert">{escape(text)}</p>' if text else ""
