"""The farm as an ASGI application. Reading order: `farm` (the parts), `routes` of each domain, `http.middleware` (errors and limits)."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI

from dart_server.farm import Farm
from dart_server.http import openapi
from dart_server.http.dependencies import is_known
from dart_server.http.middleware import FarmMiddleware, install_exception_handlers
from dart_server.http.routes import claims, history, keys
from dart_server.http.routes import dashboard as dashboard_routes
from dart_server.http.routes import farm as routes
from dart_server.http.routes import guest as guest_routes
from dart_server.http.routes import leases as lease_routes
from dart_server.http.routes import live_view as live_view_routes
from dart_server.http.routes import pools as pool_routes
from dart_server.http.routes import setups as setup_routes
from dart_server.http.routes import snapshots as snapshot_routes
from dart_server.wire.extras import package_version


def create_routes() -> FastAPI:
    """The routes and their OpenAPI document, without a farm behind them."""
    app = FastAPI(
        title="DART farm",
        version=package_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
    )
    domains = (  # a request is matched in this order, so what is asked for most comes first
        lease_routes,
        claims,
        routes,
        history,
        live_view_routes,
        setup_routes,
        snapshot_routes,
        guest_routes,
        keys,
        pool_routes,
        dashboard_routes,
    )
    for module in domains:
        # Taken as they are: `include_router` would build each a second time, 0.1 s in all, and they hold nothing of a farm.
        app.router.routes.extend(module.router.routes)
    app.openapi = lambda: openapi.openapi_document(app)  # type: ignore[method-assign]
    return app


def create_app(farm: Farm) -> FastAPI:
    """The application around one farm, whose start and stop are the caller's."""
    app = create_routes()
    app.state.farm = farm
    install_exception_handlers(app)
    app.add_middleware(
        FarmMiddleware,
        metrics=farm.metrics,
        hosts=farm.hosts,
        limits=farm.limits,
        peers=farm.peers,
        is_known=partial(is_known, farm),
        json_limit_bytes=farm.settings.json_body_limit_bytes,
        file_limit_bytes=farm.settings.file_body_limit_bytes,
    )
    return app
