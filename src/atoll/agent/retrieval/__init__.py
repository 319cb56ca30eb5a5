"""code_search and doc_search: find units of code and of documents by words and by meaning."""

from atoll.agent.retrieval.nextplaid import NextPlaid, find_server
from atoll.agent.retrieval.retriever import Retriever
from atoll.agent.retrieval.types import Bounds, Found, Hits, Refreshed, Unit

__all__ = ["Bounds", "Found", "Hits", "NextPlaid", "Refreshed", "Retriever", "Unit", "find_server"]
