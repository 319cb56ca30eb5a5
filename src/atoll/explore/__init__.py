"""A large context, explored by code: searched, counted, quoted, and what was seen of it."""
