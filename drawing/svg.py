"""SVG elements as text, with all text escaped, and the frame of a picture."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from windrow.drawing.theme import PICTURE, stylesheet

FONT = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
FONT_SIZE = 12
#: Mean width of a character, in pixels: text is cut by it.
CHARACTER = 6.6
#: Characters that XML does not have, as a translation table.
_MISSING = dict.fromkeys(
    [*range(9), 11, 12, *range(14, 32), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF], "\ufffd"
)


def tag(name: str, *children: str, **attributes: object) -> str:
    """Return an element. An attribute's `_` is `-`, without one at its end; one that is None is left out."""
    head = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(clean(_number(value)))}"
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{head}>{''.join(children)}</{name}>" if children else f"<{name}{head}/>"


def text(content: object, x: float, y: float, *, class_: str | None = None, anchor: str | None = None) -> str:
    """Return a line of text."""
    return tag("text", clean(escape(str(content))), class_=class_, x=x, y=y, text_anchor=anchor)


def tooltip(content: object) -> str:
    """Return the title of an element: browsers show it under the pointer."""
    return tag("title", clean(escape(str(content)))) if content else ""


def clean(content: str) -> str:
    """Replace the characters that XML does not have."""
    return content.translate(_MISSING)


def fitted(content: str, width: float) -> str:
    """Cut a text to a width in pixels; text that shows nothing of itself is empty."""
    room = int(width / CHARACTER)
    if len(content) <= room:
        return content
    return content[: room - 1] + "…" if room > 3 else ""


def picture(
    body: Iterable[str], width: float, height: float, *, title: str, description: str = "", style: bool = True
) -> str:
    """Return a whole picture.

    title, description: read aloud in the place of the picture
    style: with a stylesheet of its own; a page that has `theme.stylesheet()` needs none
    """
    drawn = "\n".join(part for part in body if part)
    unique = f"{zlib.crc32(f'{title}{description}{drawn}'.encode('utf-8', 'replace')):08x}"
    names = [f"windrow-{unique}-title", *([f"windrow-{unique}-desc"] if description else [])]
    head = tag("title", clean(escape(title)), id=names[0])
    if description:
        head += "\n" + tag("desc", clean(escape(description)), id=names[1])
    rules = f"\n<style>{stylesheet()}</style>" if style else ""
    page = tag("rect", class_="page", width=width, height=height, rx=8)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{PICTURE}" width="{_number(width)}" height="{_number(height)}" '
        f'viewBox="0 0 {_number(width)} {_number(height)}" role="img" aria-labelledby="{" ".join(names)}" '
        f'font-family="{FONT}" font-size="{FONT_SIZE}">\n{head}{rules}\n{page}\n{drawn}\n</svg>\n'
    )


class Picture(str):
    """A picture as SVG text. A notebook shows it; `save` writes it to a file."""

    __slots__ = ()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file, which browsers and documents show."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self)

    def _repr_html_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<picture of {len(self):,} characters: save(path) writes it, a notebook shows it>"


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
