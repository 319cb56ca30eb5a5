"""What the stores of ATOLL_CACHE share: locks, scratch folders, and JSON files that are cached."""
