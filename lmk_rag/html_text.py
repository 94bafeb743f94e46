"""HTML to text of the same length: markup becomes spaces, so offsets and lines stay true."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import accumulate

_HIDDEN = ("script", "style")
_INK = re.compile(r"[^\r\n]")


def blank_markup(html: str) -> str:
    """Replace tags, comments, declarations, scripts and styles by spaces.

    Line ends stay, and so do entity references such as "&amp;": every other character stands
    where it stood.
    """
    parser = _Ranges(html)
    parser.feed(html)
    parser.close()
    ends = [start for start, _ in parser.starts[1:]] + [len(html)]
    return "".join(
        html[start:end] if is_text else _INK.sub(" ", html[start:end])
        for (start, is_text), end in zip(parser.starts, ends, strict=True)
    )


class _Ranges(HTMLParser):
    """Note where each event starts and whether it is text; an event reaches to the next one."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=False)
        lengths = [len(line) + 1 for line in html.split("\n")]
        self._line_starts = [0, *accumulate(lengths)]
        self._hidden: str | None = None
        self.starts: list[tuple[int, bool]] = [(0, False)]

    def _note(self, *, is_text: bool) -> None:
        line, column = self.getpos()
        self.starts.append((self._line_starts[line - 1] + column, is_text and not self._hidden))

    def _text(self, *_: object, **__: object) -> None:
        self._note(is_text=True)

    def _markup(self, *_: object, **__: object) -> None:
        self._note(is_text=False)

    handle_data = handle_entityref = handle_charref = _text
    handle_comment = handle_decl = handle_pi = unknown_decl = _markup

    def handle_starttag(self, tag: str, *_: object, **__: object) -> None:
        self._markup()
        if tag in _HIDDEN:
            self._hidden = self._hidden or tag

    def handle_endtag(self, tag: str) -> None:
        self._markup()
        if tag == self._hidden:
            self._hidden = None

    def parse_marked_section(self, i: int, *_: object, **__: object) -> int:
        # html.parser stops with AssertionError at "<![foo[": to browsers that is a comment
        return self.parse_bogus_comment(i, report=True)
