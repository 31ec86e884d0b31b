"""Databases as Nsight Systems exports them, made from the documented schema: no export of a real run is here.

``NEW`` has the columns of an export by 2024.6 (schema 3.16), ``OLD`` those of the documentation of 2019, which knew no process of a
kernel and no graphs. Times are nanoseconds.
"""

import sqlite3
import struct

PID = 1 << 24
TIMED = "start! end! "  # "!": NOT NULL; ":": TEXT
ON_DEVICE = TIMED + "deviceId! contextId! greenContextId streamId! correlationId globalPid "
NEW = {
    "StringIds": "id! value!:",
    "PROCESSES": "globalPid pid name:",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime: localTime:",
    "TARGET_INFO_GPU": "vmId! id! name: busLocation: totalMemory smCount chipName:",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid! uuid: numMultiprocessors",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName!: name!: nameEnum! value!:",
    "META_DATA_EXPORT": "name!: value:",
    "CUPTI_ACTIVITY_KIND_KERNEL": ON_DEVICE + "demangledName! shortName! mangledName launchType gridX! graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": ON_DEVICE + "bytes! copyKind! srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": ON_DEVICE + "value! bytes! graphNodeId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": TIMED + "eventClass! globalTid correlationId nameId! returnValue! callchainId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ON_DEVICE + "graphId graphExecId",
    "NVTX_EVENTS": "start! end eventType! rangeId text: globalTid endGlobalTid textId domainId jsonText: binaryData:",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId! schemaId! idx! flags type name: description: arrayOrUnionDetail offset",
    "ENUM_CUDA_MEMCPY_OPER": "id! name: label:",
}
OLD = {
    "StringIds": "id! value!:",
    "CUPTI_ACTIVITY_KIND_KERNEL": TIMED + "deviceId! contextId! streamId! correlationId! demangledName! shortName!",
    "CUPTI_ACTIVITY_KIND_MEMCPY": TIMED + "deviceId! contextId! streamId! correlationId! bytes! copyKind!",
    "CUPTI_ACTIVITY_KIND_RUNTIME": TIMED + "globalTid! correlationId! nameId! returnValue!",
    "NVTX_EVENTS": "start! end eventType! text: globalTid",
}


def columns(words):
    """A table's columns as SQL."""
    kinds = [(w.rstrip("!:"), "TEXT" if w.endswith(":") else "INTEGER", " NOT NULL" * ("!" in w)) for w in words.split()]
    return ", ".join(f'"{name}" {kind}{needed}' for name, kind, needed in kinds)


class Export:
    """A database in the making: tables appear when something is put into them."""

    def __init__(self, path, schema=NEW):
        self.path, self.schema = path, schema
        self.connection = sqlite3.connect(path)
        self.strings = {}
        self.put("StringIds", id=0, value="")

    def put(self, table, **row):
        if table not in self.schema:
            return
        self.connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns(self.schema[table])})")
        there = [c[1] for c in self.connection.execute(f"PRAGMA table_info({table})")]
        needed = {c[1]: 0 for c in self.connection.execute(f"PRAGMA table_info({table})") if c[3]}
        row = needed | {k: v for k, v in row.items() if k in there}
        names = ", ".join(f'"{name}"' for name in row)
        self.connection.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", list(row.values()))

    def text(self, value):
        if value not in self.strings:
            self.strings[value] = len(self.strings) + 1
            self.put("StringIds", id=self.strings[value], value=value)
        return self.strings[value]

    def kernel(self, name, start, end, correlation, pid=1, device=0, stream=7, node=None):
        names = {"demangledName": self.text(name), "shortName": self.text(name.split("<")[0])}
        place = {"deviceId": device, "streamId": stream, "globalPid": pid * PID, "correlationId": correlation}
        self.put("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, graphNodeId=node, **names, **place)

    def copied(self, start, end, correlation, pid=1, device=0, stream=7, kind=1):
        place = {"deviceId": device, "streamId": stream, "globalPid": pid * PID, "correlationId": correlation}
        self.put("CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=end, bytes=4096, copyKind=kind, **place)

    def graph(self, start, end, correlation, pid=1, device=0, number=3):
        place = {"deviceId": device, "streamId": 7, "globalPid": pid * PID, "correlationId": correlation}
        self.put("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=start, end=end, graphId=number, graphExecId=number + 1, **place)

    def launch(self, start, correlation, name="cudaLaunchKernel_v7000", pid=1, thread=9, seconds=1000):
        called = {"nameId": self.text(name), "correlationId": correlation, "globalTid": pid * PID + thread}
        self.put("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=start + seconds, **called)

    def range(self, name, start, end, pid=1, thread=9, payload=None, registered=False):
        said = {"textId": self.text(name)} if registered else {"text": name}
        self.put("NVTX_EVENTS", start=start, end=end, eventType=59, globalTid=pid * PID + thread, binaryData=payload, **said)

    def schema_of(self, schema, *entries):
        """An NVTX payload's entries: name, type (5 int, 18 uint64, 22 size_t) and offset."""
        for idx, (name, kind, offset) in enumerate(entries):
            said = {"domainId": 5, "schemaId": schema, "idx": idx, "type": kind, "name": name, "offset": offset or None}
            self.put("NVTX_PAYLOAD_SCHEMA_ENTRIES", **said)

    def done(self):
        self.connection.commit()
        self.connection.close()
        return self.path


def payload(schema, form, *values):
    """The bytes behind a range of NCCL: a header of four words, then the values."""
    packed = struct.pack(form, *values)
    return struct.pack("<QQQQ", 5, schema, len(packed), 32 + len(packed)) + packed


def counted(path, where="1"):
    """Of kernels, graphs, copies and sets together: how many, and their nanoseconds, as SQL counts them."""
    connection = sqlite3.connect(path)
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    found = [
        connection.execute(f'SELECT count(*), total("end" - start) FROM CUPTI_ACTIVITY_KIND_{kind} WHERE {where}').fetchone()
        for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
        if f"CUPTI_ACTIVITY_KIND_{kind}" in tables
    ]
    connection.close()
    return sum(n for n, _ in found), sum(ns for _, ns in found)
