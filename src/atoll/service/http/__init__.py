"""HTTP: admission of requests, bodies and answers, problems, OpenAPI, connections."""
