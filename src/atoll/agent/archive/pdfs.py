"""Reads PDFs with PDFium: every page is a member that contains the page's text."""

from __future__ import annotations

from typing import Any

from atoll.agent.archive.reader import Reader
from atoll.errors import ArchiveError
from atoll.extras import hint


class PdfReader(Reader):
    """SECURITY: a hostile file may take over the C++ library, so the process is confined."""

    member_kind = "page"

    @classmethod
    def load(cls) -> None:
        """Import pypdfium2, which loads PDFium."""
        _library()

    def fill(self) -> None:
        """Add the members `page 1`, `page 2`, ..."""
        pdfium = _library()
        self._fault = pdfium.PdfiumError
        try:
            self._document = pdfium.PdfDocument(self.file.read())
        except pdfium.PdfiumError as exc:
            raise ArchiveError(f"the pdf cannot be read: {_reason(exc)}") from None
        self.catalog.count(len(self._document))
        for number in range(len(self._document)):
            self.catalog.add(f"page {number + 1}", number, None)

    def data(self, name: str) -> bytes:
        """Return the text of a page, in UTF-8."""
        try:
            page = self._document[self.catalog.keys[name]]
            text = page.get_textpage()
        except self._fault as exc:
            raise ArchiveError(f"{name} of the pdf cannot be read: {exc}") from None
        self.check_size(name, text.count_chars())
        data: bytes = text.get_text_range().replace("\r\n", "\n").encode("utf-8", "replace")
        text.close()
        page.close()
        return data


def _library() -> Any:
    try:
        import pypdfium2  # noqa: PLC0415 - an extra
    except ImportError:
        raise ArchiveError(f"pdf files need pypdfium2. {hint('archive')}") from None
    return pypdfium2


def _reason(exc: Exception) -> str:
    return "it is encrypted" if "assword" in str(exc) else str(exc)
