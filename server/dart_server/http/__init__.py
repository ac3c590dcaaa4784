"""The HTTP application: middleware, dependencies, OpenAPI document, ingress, routes."""
