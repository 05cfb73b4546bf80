"""The arms of each table, what each does, and what it reads."""

# The arms of each table; of those, who shuffles globally, and who goes through files in turn.
OURS = ["ours_threads", "ours_workers"]
DEFAULT = "ours_default"  # Compared with our threads; never the best of ours, being one of them.
ROW_WISE = ["array_record", "array_record_default", "grain", "grain_default"]
ROW_WISE += ["streaming", "datasets_default", "lance_default"]
COLUMNS = ["datasets", "lance"]
THREADS = ["ffcv"]  # One process, rows copied by compiled code.
SEQUENTIAL = ["streaming_default", "litdata", "webdataset", "webdataset_default", "tfrecord"]
FOLDER = ["folder", "folder_default"]
SHUFFLED = {
    "images": [*FOLDER, *ROW_WISE, *COLUMNS, *THREADS],
    "tokens": [*ROW_WISE, *COLUMNS, *THREADS],
    "tabular": [*ROW_WISE, *COLUMNS, *THREADS],
}
COLD = [*OURS, "folder", "array_record", "grain", "lance", "datasets", "streaming", "webdataset"]
COLD += ["litdata", "tfrecord", "ffcv"]
COST = ["ours_threads", "ours_workers", "folder", "array_record", "grain", "lance", "datasets"]
COST += ["streaming", "ffcv"]
# With --quick, of the peers only those that were the fastest of a table so far, or its limit.
QUICK = [*OURS, DEFAULT, "folder", "array_record", "grain", "datasets", "memmap", "ffcv"]
QUICK += ["webdataset", "tfrecord"]
WHAT = {
    "ours_threads": "ffrecord, mode='threads', checksums on",
    "ours_workers": "ffrecord, worker processes, checksums on",
    "ours_default": "ffrecord, num_workers=2 and nothing else, checksums on",
    "folder": "torch over a folder of files; one tensor per batch passed on, prefetch 4",
    "folder_default": "torch over a folder of files",
    "memmap": "not a peer: torch over a NumPy memory map, no checks",
    "array_record": "array-record, group_size 1, no read-ahead, one read for each batch",
    "array_record_default": "array-record at its defaults",
    "grain": "grain's MapDataset over array-record, threads",
    "grain_default": "grain's DataLoader over array-record, processes",
    "lance": "Lance, one take for each batch, its column in memory",
    "lance_default": "Lance's SafeLanceDataset",
    "datasets": "Hugging Face datasets, a batch as an Arrow table",
    "datasets_default": "Hugging Face datasets at their defaults",
    "streaming": "mosaicml-streaming, shuffle_algo='naive', which is global",
    "streaming_default": "mosaicml-streaming, shuffle=True: shards, then a window",
    "webdataset": "webdataset, shards of 500 shuffled",
    "webdataset_default": "webdataset, shards of 500 shuffled, then a window of 1000",
    "litdata": "litdata, shuffle=True: chunks, then within a chunk",
    "tfrecord": "tfrecord with an index, in order",
    "ffcv": "ffcv, OrderOption.RANDOM, threads, no checksums",
    "fio": "fio, io_uring, O_DIRECT, depth 64, the same sizes at random",
}
FORM = {
    **dict.fromkeys([*OURS, DEFAULT], "ffr"),
    **dict.fromkeys(FOLDER, "files"),
    **dict.fromkeys(["array_record", "grain", "grain_default"], "array_record_1"),
    **dict.fromkeys(["lance", "lance_default"], "lance"),
    **dict.fromkeys(["datasets", "datasets_default"], "arrow"),
    **dict.fromkeys(["streaming", "streaming_default"], "mds"),
    **dict.fromkeys(["webdataset", "webdataset_default"], "tar"),
    "memmap": "flat",
    "array_record_default": "array_record",
    "litdata": "litdata",
    "tfrecord": "tfrecord",
    "ffcv": "beton",
}
