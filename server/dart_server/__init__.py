"""The farm: live desktops by lease, behind an HTTP API. `dart_server.wire` is the only part that other packages import."""
