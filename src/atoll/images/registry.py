"""Images in registries: manifests and blobs by the distribution protocol."""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import TYPE_CHECKING

from atoll.errors import ImageError
from atoll.images.http import CHUNK, FAILURES, Client, HTTPFailedError, read_answer, read_pieces
from atoll.images.layout import check_blob
from atoll.images.manifest import (
    INDEXES,
    MANIFESTS,
    MOST_MANIFEST,
    choose,
    digest_of,
    media_type_of,
    parse_manifest,
    parse_object,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPResponse
    from pathlib import Path

    from atoll.images.manifest import (
        Descriptor,
        Manifest,
    )
    from atoll.images.reference import RegistryReference

ATTEMPTS = 4
PAUSE_SECONDS = 0.5
MIRRORS = "ATOLL_REGISTRY_MIRRORS"
_ACCEPT = ", ".join((*INDEXES, *MANIFESTS))


class Registry:
    """One repository of a registry, or of a mirror of it."""

    def __init__(self, asked: RegistryReference, image: str) -> None:
        self._asked, self._image = asked, image
        hosts = (*mirrors_of(asked.host), asked.host)
        self._clients = [Client(host, asked.name, image) for host in hosts]
        self._client = self._clients[-1]

    def manifest(self, architecture: str) -> Manifest:
        """Return the manifest of the image for an architecture, from the first host that has it."""
        for client in self._clients:
            self._client = client
            try:
                return self._manifest(architecture)
            except (ImageError, HTTPFailedError) as exc:
                if client is not self._clients[-1]:
                    continue
                if isinstance(exc, HTTPFailedError):
                    raise client.failure(exc) from None
                raise
        raise AssertionError

    def _manifest(self, architecture: str) -> Manifest:
        data, value = self._get(self._asked.wanted)
        if media_type_of(value) in INDEXES:
            data, value = self._get(choose(value, self._image, architecture).digest)
        if media_type_of(value) in INDEXES:
            raise ImageError(self._image, "its index names another index")
        return parse_manifest(data, self._image)

    def _get(self, wanted: str) -> tuple[bytes, dict[str, object]]:
        path = f"/v2/{self._asked.name}/manifests/{wanted}"
        with self._client.request("GET", path, {"Accept": _ACCEPT}) as answer:
            try:
                data = read_answer(answer, MOST_MANIFEST)
            except FAILURES as exc:
                raise ImageError(self._image, f"{self._client.host}: {exc}") from None
        if wanted.startswith("sha256:") and digest_of(data) != wanted:
            raise ImageError(self._image, f"the registry sent another manifest than {wanted}")
        return data, parse_object(data, self._image, "manifest", MOST_MANIFEST)

    def fetch(self, blob: Descriptor, target: Path, received: Callable[[int], None]) -> None:
        """Download a blob to `target`; what arrived before a failure is not asked for again."""
        draft = target.with_name(f"{target.name}.part")
        for attempt in range(ATTEMPTS):
            try:
                self._download(blob, draft, received)
            except HTTPFailedError as exc:
                if exc.status < 500 or attempt == ATTEMPTS - 1:
                    raise self._client.failure(exc) from None
            except FAILURES as exc:
                if attempt == ATTEMPTS - 1:
                    reason = f"the connection to {self._client.host} broke: {exc}"
                    raise ImageError(self._image, reason, "Try again: it is resumed.") from None
            else:
                draft.rename(target)
                return
            time.sleep(PAUSE_SECONDS * 2**attempt)

    def _download(self, blob: Descriptor, draft: Path, received: Callable[[int], None]) -> None:
        """Append the rest of a blob to `draft`; delete it if it turns out to be another one."""
        with draft.open("a+b") as file:
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            digest, size = hashlib.sha256(), 0
            while piece := os.read(file.fileno(), CHUNK):
                digest.update(piece)
                size += len(piece)
            if size < blob.size:
                headers = {"Range": f"bytes={size}-"} if size else {}
                path = f"/v2/{self._asked.name}/blobs/{blob.digest}"
                with self._client.request("GET", path, headers) as answer:
                    if size and not _continues(answer, size):
                        file.truncate(0)
                        digest, size = hashlib.sha256(), 0
                    received(size)
                    for piece in read_pieces(answer):
                        file.write(piece)
                        digest.update(piece)
                        size += len(piece)
                        received(len(piece))
                        if size > blob.size:
                            break
        if size < blob.size:
            raise ConnectionError(f"{size:,} of {blob.size:,} bytes came")
        try:
            check_blob(blob, size, digest.hexdigest(), self._image)
        except ImageError:
            draft.unlink()
            raise


def _continues(answer: HTTPResponse, size: int) -> bool:
    """Return whether an answer goes on where a part download ended."""
    place = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range") or "")
    return answer.status == 206 and place is not None and int(place[1]) == size


def mirrors_of(host: str) -> tuple[str, ...]:
    """Return the hosts to ask before a registry: HOST=MIRROR of ATOLL_REGISTRY_MIRRORS."""
    pairs = [entry.partition("=") for entry in re.split(r"[\s,]+", os.environ.get(MIRRORS, ""))]
    return tuple(mirror for name, _, mirror in pairs if name == host and mirror)
