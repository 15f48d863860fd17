"""Resident memory of redis-server with many clients that have said PING once: redis_clients.py LIBRARY CLIENTS

LIBRARY is preloaded; "none" for what redis-server has. CLIENTS may need `ulimit -n` (this asks for 20,000).
"""
import os
import resource
import socket
import subprocess
import sys
import time

library, clients, port = sys.argv[1], int(sys.argv[2]), 7390
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
environment = dict(os.environ)
if library != "none":
    environment["LD_PRELOAD"] = library
command = ["redis-server", "--port", str(port), "--save", "", "--maxclients", "15000", "--daemonize", "no"]
server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def connect():
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.05)
    sys.exit("redis-server does not answer")


def resident():
    fields = open(f"/proc/{server.pid}/status").read().split()
    return int(fields[fields.index("VmRSS:") + 1]) // 1024


try:
    connect().close()
    before, held = resident(), []
    for _ in range(clients):
        client = connect()
        client.sendall(b"PING\r\n")
        client.recv(100)
        held.append(client)
    print(f"{os.path.basename(library)}: {before} MiB, with {clients} clients {resident()} MiB")
finally:
    server.kill()
    server.wait()
