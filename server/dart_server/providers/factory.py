"""Which provider a farm uses. Rule: the one place that knows concrete providers; each is imported only when it is chosen."""

from __future__ import annotations

from dart_server.providers.base import Provider
from dart_server.settings import FarmSettings


def create_provider(settings: FarmSettings) -> Provider:
    """A provider that was not started yet."""
    if settings.provider == "sim":
        from dart_server.providers.sim.provider import SimProvider

        return SimProvider(mean_life_steps=settings.sim_mean_life_steps)
    if settings.provider == "docker":
        from dart_server.providers.docker.provider import DockerProvider

        return DockerProvider(home=settings.home, runtime_dir=settings.runtime_dir)
    if settings.provider == "libvirt":
        from dart_server.providers.libvirt.provider import LibvirtProvider

        return LibvirtProvider(
            home=settings.home,
            runtime_dir=settings.runtime_dir,
            snapshot_dir=settings.snapshot_dir,
            uri=settings.libvirt_uri,
        )
    from dart_server.providers.runc.provider import RuncProvider

    return RuncProvider(
        home=settings.home,
        runtime_dir=settings.runtime_dir,
        snapshot_dir=settings.snapshot_dir,
        egress=settings.egress,
        egress_networks=settings.egress_networks,
        desktops_without_farm_s=settings.desktops_without_farm_s,
    )
