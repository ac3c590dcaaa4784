"""Speaking with the agent inside a desktop: connections (`client`), attribution of failures (`access`), the HTTP and WebSocket routes."""
