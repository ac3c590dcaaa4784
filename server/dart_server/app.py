"""The farm as an ASGI application. Reading order: `farm` (the parts), `routes` of each domain, `border` (errors and limits)."""

from __future__ import annotations

from fastapi import FastAPI

from dart_server import apidoc, history, key_routes, routes
from dart_server.border import Border, install_handlers
from dart_server.dashboard import lease_routes as live_view_routes
from dart_server.dashboard import routes as dashboard_routes
from dart_server.farm import Farm, package_version
from dart_server.guest import routes as guest_routes
from dart_server.leases import claim_routes
from dart_server.leases import routes as lease_routes
from dart_server.pool import routes as pool_routes
from dart_server.setups import routes as setup_routes
from dart_server.snapshots import routes as snapshot_routes


def create_app(farm: Farm) -> FastAPI:
    """The application around one farm, whose start and stop are the caller's."""
    app = FastAPI(
        title="DART farm",
        version=package_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    app.state.farm = farm
    domains = (  # a request is matched in this order, so what is asked for most comes first
        lease_routes,
        claim_routes,
        routes,
        history,
        live_view_routes,
        setup_routes,
        snapshot_routes,
        guest_routes,
        key_routes,
        pool_routes,
        dashboard_routes,
    )
    for module in domains:
        # Taken as they are: `include_router` would build each a second time, 0.1 s in all, and they hold nothing of a farm.
        app.router.routes.extend(module.router.routes)
    app.openapi = lambda: apidoc.document(app)  # type: ignore[method-assign]
    install_handlers(app)
    app.add_middleware(
        Border,
        metrics=farm.metrics,
        hosts=farm.hosts,
        limits=farm.limits,
        json_limit_bytes=farm.settings.json_body_limit_bytes,
        file_limit_bytes=farm.settings.file_body_limit_bytes,
    )
    return app
