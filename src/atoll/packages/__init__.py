"""Packages by name: resolved once, built in a jail, stored read-only, shared by all guests.

requirements ──▶ download ──wheels──▶ build ────▶ store ────▶ guests: /opt/atoll/packages
 (checked)       pip, confined,       unpacked    under its hash,
                 has a network        in a jail   evicted by size
"""
