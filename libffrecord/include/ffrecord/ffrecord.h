#pragma once

// FFRecord for C, and for every language that can call C.
//
// Plain C11; bindings need to understand no macro. Indices count from 0, sizes are in bytes,
// strings are UTF-8 and end in NUL.
//
// Errors. A function that can fail returns FFR_OK or another ffr_code. Its last argument is
// `ffr_error** error`, which may be NULL. On failure *error is a new object, which the caller
// frees, and all other outputs are unchanged. On success *error is unchanged. No function throws. A
// NULL argument that is not allowed gives FFR_INVALID_ARGUMENT.
//
// Ownership. An object returned through `ffr_x**` belongs to the caller, who frees it once with
// ffr_x_free, which does nothing with NULL. A `const` pointer that a function returns is borrowed
// from the function's argument and valid as long as that argument. Functions borrow arguments only
// for the call.
//
// Threads. Many threads may use a reader, a schema, a batch or an error at the same time, except to
// free it. Only one thread at a time may use a writer. Distinct objects are independent.
//
// Growth. Releases never change or remove anything here. They add functions and constants, and
// fields at the end of structures that begin with `struct_size`. Set `struct_size` to sizeof of the
// structure and all other fields to zero, the default of every field. A program then works with
// every library of its own version or newer. An older library works too, unless the program sets a
// field that this library does not know, which gives FFR_INVALID_ARGUMENT.

#include <stddef.h>
#include <stdint.h>

#include <ffrecord/export.h>

#ifdef __cplusplus
extern "C" {
#endif

// Increases by one with each release that adds to this header.
#define FFR_API_VERSION 1

// The FFR_API_VERSION of the loaded library, which may be newer than this header.
FFR_EXPORT uint32_t ffr_api_version(void);
// The version of the library, "major.minor.patch", for people. A static string.
FFR_EXPORT const char* ffr_library_version(void);

// ---------------------------------------------------------------------------------------- Errors

// The kind of an error. Treat unknown codes like FFR_IO.
typedef int32_t ffr_code;
enum {
  FFR_OK = 0,
  FFR_INVALID_ARGUMENT = 1,   // The caller's mistake. Never retry.
  FFR_NOT_FOUND = 2,          // No such file or dataset.
  FFR_CORRUPTION = 3,         // Stored bytes fail a check.
  FFR_IO = 4,                 // The device or kernel refused; ffr_error_errno says why.
  FFR_UNAVAILABLE = 5,        // The daemon is gone or busy. Retry later.
  FFR_DEADLINE_EXCEEDED = 6,  // Time is up; the operation may still take effect.
  FFR_CONFLICT = 7,           // Another writer published first, or the file exists.
  FFR_DENIED = 8,             // This user may not do this. Never retry.
  FFR_OUT_OF_RANGE = 9        // A record index is not below the record count. Never retry.
};

typedef struct ffr_error ffr_error;

FFR_EXPORT ffr_code ffr_error_code(const ffr_error* error);
// For people: the operation, its object, the cause, the remedy.
FFR_EXPORT const char* ffr_error_message(const ffr_error* error);
// The errno of an FFR_IO, or 0.
FFR_EXPORT int ffr_error_errno(const ffr_error* error);
FFR_EXPORT void ffr_error_free(ffr_error* error);

// --------------------------------------------------------------------------------------- Schemas

// Bytes of any kind, borrowed. `data` may be NULL if `size` is 0.
typedef struct ffr_bytes {
  const void* data;
  size_t size;
} ffr_bytes;

// A value of user metadata: any bytes under a name of 1 to 255 bytes.
typedef struct ffr_named_bytes {
  const char* name;
  ffr_bytes value;
} ffr_named_bytes;

// Element types, with the values that the file stores (format.md, "Schema").
enum {
  FFR_BOOL = 1,  // One byte, 0 or 1.
  FFR_U8 = 2,
  FFR_I8 = 3,
  FFR_U16 = 4,
  FFR_I16 = 5,
  FFR_U32 = 6,
  FFR_I32 = 7,
  FFR_U64 = 8,
  FFR_I64 = 9,
  FFR_F16 = 10,
  FFR_BF16 = 11,
  FFR_F32 = 12,
  FFR_F64 = 13,
  FFR_BYTES = 32,  // Any bytes, of any size.
  FFR_UTF8 = 33    // UTF-8 text, of any size.
};

// One column: a fixed-width tensor of numbers, little-endian and row-major, or bytes of any size.
typedef struct ffr_column {
  const char* name;  // 1 to 255 bytes, unique in its schema.
  uint32_t type;     // One of the constants above.
  uint32_t
      shape_size;  // Count of dimensions, 0 to 32; 0 for a scalar, and for FFR_BYTES, FFR_UTF8.
  const uint64_t* shape;  // Each >= 1; may be NULL if shape_size is 0.
} ffr_column;

// The layout of records as columns. Immutable.
typedef struct ffr_schema ffr_schema;

// Makes a schema of 1 to 1,024 columns.
//
// Fails with FFR_INVALID_ARGUMENT if a name is empty, too long or used twice, a type is unknown, a
// shape has a zero or belongs to a variable column, or a value is larger than 1 MiB.
FFR_EXPORT ffr_code ffr_schema_make(const ffr_column* columns, size_t column_count,
                                    ffr_schema** schema, ffr_error** error);
FFR_EXPORT void ffr_schema_free(ffr_schema* schema);
// 0 if records are just bytes.
FFR_EXPORT size_t ffr_schema_column_count(const ffr_schema* schema);
// Fills `found` with the column's description; its pointers are borrowed from the schema.
//
// Fails with FFR_OUT_OF_RANGE if there is no such column.
FFR_EXPORT ffr_code ffr_schema_column(const ffr_schema* schema, size_t column, ffr_column* found,
                                      ffr_error** error);

// --------------------------------------------------------------------------------------- Reading

// How a local file is read.
enum {
  FFR_IO_DEFAULT = 0,   // The library's default.
  FFR_IO_BUFFERED = 1,  // Through the page cache: best when the data fits in memory.
  FFR_IO_DIRECT = 2,    // O_DIRECT: best for data that is read once.
  FFR_IO_AUTO = 3       // The page cache first; O_DIRECT for the rest if the files do not fit.
};

typedef struct ffr_reader_options {
  size_t struct_size;
  uint32_t io;              // FFR_IO_*.
  uint32_t queue_depth;     // Reads in flight for one batch, 1 to 4096; 0: 64.
  uint32_t skip_checksums;  // Not 0: return records without verifying their checksums.
  uint32_t salvage;         // Not 0: open a damaged version 1 file; bad records get a status each.
} ffr_reader_options;

// Reads batches of records of an ordered list of files, by index. Immutable: the files are sealed.
// After fork, parent and child may both go on using a reader.
typedef struct ffr_reader ffr_reader;

// Opens files of version 1 or 2 as one sequence of records, in list order; reads no record. The
// locations are paths, or one address ffrecord://host[:port]/name of a dataset that a daemon
// serves. `options` may be NULL.
//
// Fails with FFR_NOT_FOUND if a file is missing, FFR_CORRUPTION if a header or an index fails its
// check, FFR_INVALID_ARGUMENT if the list is empty, an option is out of range, or the files'
// schemas differ, FFR_DENIED, FFR_IO, or, for an address, FFR_UNAVAILABLE or
// FFR_DEADLINE_EXCEEDED. The message names the file.
FFR_EXPORT ffr_code ffr_reader_open(const char* const* locations, size_t location_count,
                                    const ffr_reader_options* options, ffr_reader** reader,
                                    ffr_error** error);
// Batches and errors that the reader returned stay valid.
FFR_EXPORT void ffr_reader_free(ffr_reader* reader);
FFR_EXPORT uint64_t ffr_reader_record_count(const ffr_reader* reader);
FFR_EXPORT size_t ffr_reader_file_count(const ffr_reader* reader);
FFR_EXPORT const ffr_schema* ffr_reader_schema(const ffr_reader* reader);
// Fills 16 bytes with the fingerprint of all files, which covers the records and their order.
FFR_EXPORT void ffr_reader_fingerprint(const ffr_reader* reader, uint8_t* fingerprint);

// The records of one read, in request order, in one block of memory. Immutable.
typedef struct ffr_batch ffr_batch;

// Reads the records `indices`, in any order; indices may repeat. One submission; the calling thread
// waits. A record that cannot be read affects only its own status.
//
// Fails as a whole with FFR_OUT_OF_RANGE, before any read, if an index is not below the record
// count; with FFR_IO (ENOMEM) if there is no memory; and if no read could be tried at all.
FFR_EXPORT ffr_code ffr_reader_read(const ffr_reader* reader, const uint64_t* indices,
                                    size_t index_count, ffr_batch** batch, ffr_error** error);

// Reads several batches of one reader at a time, without a call that waits for each. Any thread may
// call it, one at a time. The reader outlives it. In a forked child a queue of the parent's can
// only be freed.
typedef struct ffr_queue ffr_queue;

typedef struct ffr_queue_options {
  size_t struct_size;
  uint32_t batches_in_flight;  // Batches that have memory, 1 to 64; 0: 4. The others wait.
  uint32_t in_order;  // Not 0: batches are returned in the order of submission, else as they end.
} ffr_queue_options;

// A batch that is complete.
typedef struct ffr_completion {
  uint32_t is_complete;  // 0: there was none; the rest is zero.
  uint64_t token;        // As it was submitted.
  ffr_batch* batch;      // The caller's to free; NULL if the whole batch failed,
  ffr_error* error;      // which this says; the caller's to free.
} ffr_completion;

// Opens a queue. `options` may be NULL.
//
// Fails with FFR_INVALID_ARGUMENT if an option is out of range, and with FFR_IO if there are no
// descriptors or memory for it.
FFR_EXPORT ffr_code ffr_queue_open(const ffr_reader* reader, const ffr_queue_options* options,
                                   ffr_queue** queue, ffr_error** error);
// Cancels incomplete batches. Batches that were returned stay valid.
FFR_EXPORT void ffr_queue_free(ffr_queue* queue);
// Begins to read the records `indices`, which are copied; does not wait. `token` is the caller's.
// After `timeout_ms` the batch fails with FFR_DEADLINE_EXCEEDED; -1: never.
//
// Fails with FFR_OUT_OF_RANGE as ffr_reader_read, and in a forked child with FFR_INVALID_ARGUMENT;
// then there is no batch.
FFR_EXPORT ffr_code ffr_queue_submit(ffr_queue* queue, const uint64_t* indices, size_t index_count,
                                     uint64_t token, int64_t timeout_ms, ffr_error** error);
// Fills `completion` with the next complete batch. Waits for at most `timeout_ms`; -1: without a
// limit. Returns at once if there is no batch to wait for.
FFR_EXPORT ffr_code ffr_queue_poll(ffr_queue* queue, int64_t timeout_ms, ffr_completion* completion,
                                   ffr_error** error);
// Drops the oldest batch with `token` that was not returned; 0 if there is none.
FFR_EXPORT int ffr_queue_cancel(ffr_queue* queue, uint64_t token);
// Batches that were submitted and neither returned nor cancelled.
FFR_EXPORT size_t ffr_queue_size(const ffr_queue* queue);
// A descriptor for an event loop, the queue's own: readable while ffr_queue_poll would find
// something to do. Poll with 0 until nothing is complete, once after each submission, whenever the
// descriptor is readable, and when the time of a batch is over.
FFR_EXPORT ffr_code ffr_queue_descriptor(ffr_queue* queue, int* descriptor, ffr_error** error);

// Explains the status of a record: returns a new error of that code, which the caller frees.
FFR_EXPORT ffr_error* ffr_reader_describe(const ffr_reader* reader, uint64_t index,
                                          ffr_code status);

// 2^64 - 1: the result of ffr_reader_find for a key that no record has.
#define FFR_NO_RECORD UINT64_MAX

// Fills `key_count` indices: for each of `keys` the lowest index of a record with that key, or
// FFR_NO_RECORD. Reads a few pages of each file that has keys.
//
// Fails with FFR_CORRUPTION if a page that the look-up needs is damaged, or as ffr_reader_read.
FFR_EXPORT ffr_code ffr_reader_find(const ffr_reader* reader, const ffr_bytes* keys,
                                    size_t key_count, uint64_t* indices, ffr_error** error);
// Reads the values of one fixed-width column of the records [first, first + count), back to back.
// If the file has a copy of the column, reads only the copy.
//
// Fails with FFR_OUT_OF_RANGE if there are no such records, with FFR_INVALID_ARGUMENT unless the
// column is fixed-width and `destination_size` is `count` times the size of a value, and with a
// record's status if that record cannot be read.
FFR_EXPORT ffr_code ffr_reader_column(const ffr_reader* reader, size_t column, uint64_t first,
                                      uint64_t count, void* destination, size_t destination_size,
                                      ffr_error** error);

// The user metadata of a file. Immutable.
typedef struct ffr_metadata ffr_metadata;

// Reads the metadata of file number `file` in the list; the result is empty if it has none.
//
// Fails with FFR_OUT_OF_RANGE if there is no such file, FFR_CORRUPTION, or as ffr_reader_read.
FFR_EXPORT ffr_code ffr_reader_metadata(const ffr_reader* reader, size_t file,
                                        ffr_metadata** metadata, ffr_error** error);
FFR_EXPORT void ffr_metadata_free(ffr_metadata* metadata);
FFR_EXPORT size_t ffr_metadata_count(const ffr_metadata* metadata);
// Fills `found` with the value at `position`, in ascending order of names; borrowed from the
// metadata.
//
// Fails with FFR_OUT_OF_RANGE if there is none.
FFR_EXPORT ffr_code ffr_metadata_at(const ffr_metadata* metadata, size_t position,
                                    ffr_named_bytes* found, ffr_error** error);

FFR_EXPORT void ffr_batch_free(ffr_batch* batch);
FFR_EXPORT size_t ffr_batch_size(const ffr_batch* batch);
// The record at `position` of the request; empty unless its status is FFR_OK. Requires
// position < ffr_batch_size().
FFR_EXPORT ffr_bytes ffr_batch_record(const ffr_batch* batch, size_t position);
// FFR_OK, FFR_CORRUPTION, FFR_IO, FFR_UNAVAILABLE or FFR_DEADLINE_EXCEEDED: one byte per record.
FFR_EXPORT const uint8_t* ffr_batch_statuses(const ffr_batch* batch);
// The whole block, and the start and size in bytes of each record in it: for callers that process
// all records at once. Equal indices may share their bytes.
FFR_EXPORT ffr_bytes ffr_batch_data(const ffr_batch* batch);
FFR_EXPORT const int64_t* ffr_batch_starts(const ffr_batch* batch);
FFR_EXPORT const int64_t* ffr_batch_sizes(const ffr_batch* batch);

// Locates the values of one column in ffr_batch_data(): fills ffr_batch_size() starts and sizes,
// both 0 for a record whose status is not FFR_OK.
//
// Fails with FFR_OUT_OF_RANGE if there is no such column, with FFR_CORRUPTION if a record does not
// fit the schema.
FFR_EXPORT ffr_code ffr_batch_column(const ffr_batch* batch, size_t column, int64_t* starts,
                                     int64_t* sizes, ffr_error** error);
// Copies the values of one fixed-width column back to back, with zeros for a record whose status
// is not FFR_OK.
//
// Fails with FFR_OUT_OF_RANGE if there is no such column, with FFR_INVALID_ARGUMENT unless it is
// fixed-width and `destination_size` is ffr_batch_size() times the size of a value.
FFR_EXPORT ffr_code ffr_batch_gather(const ffr_batch* batch, size_t column, void* destination,
                                     size_t destination_size, ffr_error** error);

// --------------------------------------------------------------------------------------- Writing

typedef struct ffr_writer_options {
  size_t struct_size;
  uint32_t compression_level;  // 1 to 19: zstd, for each record that gets smaller; 0: none.
  uint32_t alignment;          // For each record in the file, in bytes: 1, 512 or 4096; 0: 1.
  uint32_t replace;            // Not 0: replace an existing file.
  uint32_t keys;               // Not 0: records may have keys, by which readers find them.
  // For many small, similar records: the size in bytes of a zstd dictionary to train on the first
  // of them, 1,024 bytes to 16 MiB, 0: none; or a finished `dictionary`. Both need a
  // compression_level.
  uint32_t train_dictionary_size;
  uint32_t copied_column_count;
  ffr_bytes dictionary;
  // Names of columns that the writer also stores apart from the records, so that ffr_reader_column
  // can read them alone: fixed-width, at most 64 bytes per value, 512 bytes together.
  const char* const* copied_columns;
  const ffr_named_bytes* metadata;  // Stored in the file; 16 MiB in all. Names are unique.
  size_t metadata_count;
} ffr_writer_options;

// Writes one version 2 file of any number of records, in constant memory. A new file becomes
// visible under its name only when ffr_writer_close succeeds. Used by one thread at a time.
typedef struct ffr_writer ffr_writer;

// Creates a writer for a new file at `path`. If `schema` is NULL, records are just bytes. `options`
// may be NULL.
//
// Fails with FFR_INVALID_ARGUMENT if an option is out of range, FFR_CONFLICT if `path` exists and
// `replace` is 0, FFR_NOT_FOUND if its folder does not exist, FFR_DENIED, or FFR_IO.
FFR_EXPORT ffr_code ffr_writer_create(const char* path, const ffr_schema* schema,
                                      const ffr_writer_options* options, ffr_writer** writer,
                                      ffr_error** error);
typedef struct ffr_append_options {
  size_t struct_size;
  uint32_t compression_level;       // 1 to 19, for a file created with compression; 0: 3.
  uint32_t store_raw;               // Not 0: do not compress the added records.
  uint64_t commit_interval;         // Commits after this many bytes since the last commit: 1 MiB
                                    // to 64 MiB; 0: 64 MiB.
  const ffr_named_bytes* metadata;  // Replaces the file's metadata; NULL keeps it.
  size_t metadata_count;
} ffr_append_options;

// Creates a writer that appends to a local file in place; a file has one writer at a time.
// `options` may be NULL. Each commit is on stable storage before it counts. After a kill the file
// is as of its last commit; the next append removes bytes behind it.
//
// Fails with FFR_CONFLICT if another writer appends to the file, FFR_INVALID_ARGUMENT if an option
// is out of range, the file has version 1 or was created without a feature that an option requests,
// FFR_NOT_FOUND, FFR_CORRUPTION, FFR_DENIED, or FFR_IO.
FFR_EXPORT ffr_code ffr_writer_append(const char* path, const ffr_append_options* options,
                                      ffr_writer** writer, ffr_error** error);
// Makes all appended records durable, and visible to readers that open the file from now on.
//
// Fails with FFR_INVALID_ARGUMENT if the file is new, because it becomes visible at
// ffr_writer_close; with FFR_IO.
FFR_EXPORT ffr_code ffr_writer_commit(ffr_writer* writer, ffr_error** error);

// Adds one encoded record; copies its bytes.
//
// Fails with FFR_INVALID_ARGUMENT if the record does not fit the schema or has 2^40 bytes or more,
// with FFR_IO if the disk refuses; after FFR_IO every later call fails with FFR_IO too.
FFR_EXPORT ffr_code ffr_writer_write(ffr_writer* writer, const void* data, size_t size,
                                     ffr_error** error);
// Adds one record made of one value per column, in schema order. Fails as ffr_writer_write.
FFR_EXPORT ffr_code ffr_writer_write_fields(ffr_writer* writer, const ffr_bytes* fields,
                                            size_t field_count, ffr_error** error);
// The same with a key of 1 to 65,535 bytes, which need not be unique; size 0 means no key. Both
// fail as ffr_writer_write, and with FFR_INVALID_ARGUMENT if the key is larger or the file was
// created without keys.
FFR_EXPORT ffr_code ffr_writer_write_keyed(ffr_writer* writer, const void* data, size_t size,
                                           const void* key, size_t key_size, ffr_error** error);
FFR_EXPORT ffr_code ffr_writer_write_fields_keyed(ffr_writer* writer, const ffr_bytes* fields,
                                                  size_t field_count, const void* key,
                                                  size_t key_size, ffr_error** error);
// The number of records; in an append, includes the existing records.
FFR_EXPORT uint64_t ffr_writer_record_count(const ffr_writer* writer);
// Writes the index, syncs, and publishes the file under its name: it is then whole and on stable
// storage. Only ffr_writer_free may follow.
//
// Fails with FFR_IO, or with FFR_CONFLICT if another process has created a file of that name since
// ffr_writer_create; that file is untouched.
FFR_EXPORT ffr_code ffr_writer_close(ffr_writer* writer, ffr_error** error);
// Without a successful close, a new file leaves nothing behind, and an append keeps its commits.
FFR_EXPORT void ffr_writer_free(ffr_writer* writer);

// -------------------------------------------------------------------------- Checking and repairing

// Called from time to time on the calling thread with bytes done and total bytes. Return 0 to
// continue; any other value ends the call with FFR_DEADLINE_EXCEEDED. Must return normally, not by
// an exception or longjmp.
typedef int (*ffr_progress)(void* context, uint64_t done, uint64_t total);

// The result of a check or a repair. Immutable.
typedef struct ffr_report ffr_report;

FFR_EXPORT void ffr_report_free(ffr_report* report);
// Not 0 if the check found no fault, or if the repair lost nothing.
FFR_EXPORT int ffr_report_is_whole(const ffr_report* report);
// Records of the checked file, or of the new file of a repair.
FFR_EXPORT uint64_t ffr_report_record_count(const ffr_report* report);
// Records that a reader would reject; of a repair, records that the new file lacks.
FFR_EXPORT uint64_t ffr_report_lost_count(const ffr_report* report);
// Lines of text, each with its place in the file: the faults; of a repair, the parts that were
// kept, rebuilt and lost. About a hundred at most; the rest are only counted.
FFR_EXPORT size_t ffr_report_line_count(const ffr_report* report);
// Borrowed from the report; NULL if there is no such line.
FFR_EXPORT const char* ffr_report_line(const ffr_report* report, size_t line);
// For a repair: the first thousand ranges [begin, end) of old records that the new file lacks,
// ascending. With them a caller can compute the new index of an old record.
FFR_EXPORT size_t ffr_report_lost_range_count(const ffr_report* report);
// Fills `begin` and `end`.
//
// Fails with FFR_OUT_OF_RANGE if there is no such range.
FFR_EXPORT ffr_code ffr_report_lost_range(const ffr_report* report, size_t range, uint64_t* begin,
                                          uint64_t* end, ffr_error** error);

typedef struct ffr_verify_options {
  size_t struct_size;
  ffr_progress progress;  // NULL: none.
  void* context;          // For `progress`.
} ffr_verify_options;

// Reads every byte of a local file once and checks it. Damage is listed in the report and does not
// make the call fail. `options` may be NULL.
//
// Fails as ffr_reader_open if the file cannot be opened at all; with FFR_DEADLINE_EXCEEDED.
FFR_EXPORT ffr_code ffr_verify(const char* path, const ffr_verify_options* options,
                               ffr_report** report, ffr_error** error);

typedef struct ffr_repair_options {
  size_t struct_size;
  uint32_t replace;       // Not 0: replace an existing destination.
  ffr_progress progress;  // NULL: none.
  void* context;          // For `progress`.
} ffr_repair_options;

// Writes a new file with all intact parts of a damaged one, which it only reads: records in order
// with their keys, column copies, schema, dictionaries, metadata. `options` may be NULL.
//
// Fails with FFR_CORRUPTION if the file cannot be identified, FFR_CONFLICT if `destination` exists
// and `replace` is 0, FFR_NOT_FOUND, FFR_INVALID_ARGUMENT if the file needs a newer library,
// FFR_IO, or FFR_DEADLINE_EXCEEDED; there is no new file then.
FFR_EXPORT ffr_code ffr_repair(const char* source, const char* destination,
                               const ffr_repair_options* options, ffr_report** report,
                               ffr_error** error);

// ---------------------------------------------------------------------------------------- Runtime

// Why a phase needs the network. Treated as FFR_PHASE_OTHER: every other number.
enum { FFR_PHASE_COLLECTIVE = 0, FFR_PHASE_POINT_TO_POINT = 1, FFR_PHASE_OTHER = 2 };

// A phase begins in which the program needs the network; while pacing is on, uploads and reads
// ahead of this process wait for its end. Phases may nest and overlap, in one thread and in
// several. `size_bytes` is what is about to be exchanged, 0 if that is not known. From any thread;
// allocates nothing and never waits; costs one load while pacing is off.
FFR_EXPORT void ffr_phase_begin(uint32_t kind, uint64_t size_bytes);
// One phase of that kind ends. Does nothing if none is open.
FFR_EXPORT void ffr_phase_end(uint32_t kind);
// A step of the training ends. The next step's phases are predicted from those of the last steps.
FFR_EXPORT void ffr_step_end(void);

// The limits that keep a class of traffic from starving.
typedef struct ffr_pacing_class {
  uint64_t floor_bytes_per_s;  // It gets at least this rate; 0: the default.
  uint32_t longest_hold_ms;    // Nothing waits longer, 1 to 60,000; 0: the default.
} ffr_pacing_class;

typedef struct ffr_pacing_options {
  size_t struct_size;
  ffr_pacing_class prefetch;    // 4 MiB/s, 100 ms.
  ffr_pacing_class checkpoint;  // 1 MiB/s, 500 ms.
  ffr_pacing_class repair;      // 256 KiB/s, 2,000 ms.
  uint64_t link_bytes_per_s;    // The rate of the link that phases and storage share; 0: unknown.
  uint32_t chunk_size_bytes;    // Between two decisions, 16 KiB to 2 MiB; 0: 256 KiB.
} ffr_pacing_options;

// Turns pacing on for this process. `options` may be NULL. A forked child begins with pacing off.
//
// Fails with FFR_INVALID_ARGUMENT if an option is out of range; then nothing changes.
FFR_EXPORT ffr_code ffr_pacing_start(const ffr_pacing_options* options, ffr_error** error);
// Turns pacing off. Transfers that are held begin at once.
FFR_EXPORT void ffr_pacing_stop(void);

#ifdef __cplusplus
}
#endif
