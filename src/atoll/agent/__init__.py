"""What a model works with: environment, questions over a context, retrieval, memory, records."""
