"""Pushes a stored image to a registry."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING

from atoll.errors import ConfigError, ImageError
from atoll.images import store
from atoll.images.http import Client, HTTPFailedError
from atoll.images.manifest import parse_manifest
from atoll.images.reference import RegistryReference, parse
from atoll.packages.progress import Progress
from atoll.text.amounts import size_text

if TYPE_CHECKING:
    from pathlib import Path

    from atoll.images.image import Image
    from atoll.images.manifest import Descriptor


def push_image(image: Image, target: str) -> str:
    """Send an image to a registry under the reference `target`; return its digest. This blocks."""
    asked = parse(target)
    if not isinstance(asked, RegistryReference) or asked.digest:
        raise ConfigError(f"{target!r} is not a place in a registry: write it as HOST/team/env:tag")
    client = Client(asked.host, asked.name, target)
    manifest = parse_manifest(store.read_blob(image.digest, target), target)
    with Progress(f"atoll: pushing {target[:60]}") as progress:
        try:
            for blob in (*manifest.layers, manifest.config):
                path = store.blob_path(blob.digest)
                if not path.exists():
                    reason = f"{blob.digest} is missing in the store"
                    raise ImageError(target, reason, "Pull the image again.")
                progress.say(f"sending {size_text(blob.size)}")
                _send(client, asked.name, blob, path)
            client.request(
                "PUT",
                f"/v2/{asked.name}/manifests/{asked.tag}",
                {"Content-Type": manifest.media_type},
                manifest.data,
            ).close()
        except HTTPFailedError as exc:
            raise client.failure(exc) from None
    return manifest.digest


def _send(client: Client, name: str, blob: Descriptor, path: Path) -> None:
    """Upload a blob, unless the registry has it."""
    try:
        client.request("HEAD", f"/v2/{name}/blobs/{blob.digest}").close()
    except HTTPFailedError as exc:
        if exc.status != 404:
            raise
    else:
        return
    with client.request("POST", f"/v2/{name}/blobs/uploads/", {"Content-Length": "0"}, b"") as said:
        place = said.headers.get("Location") or ""
    joint = "&" if urllib.parse.urlsplit(place).query else "?"
    url = f"{place}{joint}{urllib.parse.urlencode({'digest': blob.digest})}"
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
    with path.open("rb") as file:
        client.request("PUT", url, headers, file).close()
