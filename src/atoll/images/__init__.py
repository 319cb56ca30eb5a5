"""Container images by reference: pulled once, unpacked in a jail, stored read-only by digest.

reference ──▶ registry, layout ──blobs──▶ unpack ───▶ store ────▶ guests: layers of an overlay
 (parsed)     or archive; each            each layer   by digest,
              checked by its digest       in a jail    evicted by size
"""

from atoll.images.commit import add_layer
from atoll.images.image import ConfigChanges, HeldImage, Image, ImageConfig, Owner
from atoll.images.obtain import find_image, get_image

__all__ = [
    "ConfigChanges",
    "HeldImage",
    "Image",
    "ImageConfig",
    "Owner",
    "add_layer",
    "find_image",
    "get_image",
]
