#pragma once

// FFRecord for C, and for every language that can call C.
//
// Plain C11; no macro needs to be understood by who binds it. Indices count from 0, sizes are in
// bytes, strings are UTF-8 ending in NUL.
//
// Errors. A function that can fail returns FFR_OK or another ffr_code, and takes as last argument
// `ffr_error** error`, which may be NULL. On failure *error is a new object, which the caller
// frees; on success neither it nor, on failure, any other output is touched. Nothing throws; a NULL
// where one is not allowed gives FFR_INVALID_ARGUMENT.
//
// Ownership. What a function returns through `ffr_x**` belongs to the caller, who gives it to
// ffr_x_free, once; that of NULL does nothing. `const` pointers that a function returns are
// borrowed from its argument and are valid as long as that lives. Arguments are only borrowed for
// the call.
//
// Threads. A reader, a schema, a batch and an error may be used by many threads at the same time,
// but for freeing. A writer is used by one thread at a time. Distinct objects are independent.
//
// Growth. Nothing here is ever changed or removed; functions and constants are added, and fields at
// the end of structures that begin with `struct_size`. Set that to sizeof of the structure and the
// rest to zero, which means the default in every field: a program then works with every library of
// its own version or newer, and with an older one unless it sets a field unknown there, which gives
// FFR_INVALID_ARGUMENT.

#include <stddef.h>
#include <stdint.h>

#include <ffrecord/export.h>

#ifdef __cplusplus
extern "C" {
#endif

// Goes up by one with each release that adds to this header.
#define FFR_API_VERSION 1

// FFR_API_VERSION of the library that is loaded, which may be newer than this header.
FFR_EXPORT uint32_t ffr_api_version(void);
// Version of the library, "major.minor.patch", for people. Static.
FFR_EXPORT const char* ffr_library_version(void);

// ---------------------------------------------------------------------------------------- Errors

// What a caller may decide on. Programs treat codes that they do not know like FFR_IO.
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
// For people: what was tried, on what, what was found, the remedy.
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

// As in the file: format.md, "Schema".
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

// How records are cut into columns. Immutable.
typedef struct ffr_schema ffr_schema;

// Makes a schema of 1 to 1,024 columns.
//
// Fails with FFR_INVALID_ARGUMENT if a name is empty, too long or used twice, a type is unknown, a
// shape has a zero or belongs to a column of any size, or a value is larger than 1 MiB.
FFR_EXPORT ffr_code ffr_schema_make(const ffr_column* columns, size_t column_count,
                                    ffr_schema** schema, ffr_error** error);
FFR_EXPORT void ffr_schema_free(ffr_schema* schema);
// 0 if records are just bytes.
FFR_EXPORT size_t ffr_schema_column_count(const ffr_schema* schema);
// Fills `found`, with pointers that are borrowed from the schema.
//
// Fails with FFR_OUT_OF_RANGE if there is no such column.
FFR_EXPORT ffr_code ffr_schema_column(const ffr_schema* schema, size_t column, ffr_column* found,
                                      ffr_error** error);

// --------------------------------------------------------------------------------------- Reading

// How a local file is read.
enum {
  FFR_IO_DEFAULT = 0,   // What the library of that version takes for best.
  FFR_IO_BUFFERED = 1,  // Through the page cache: best when the data fits in memory.
  FFR_IO_DIRECT = 2,    // Past it: best for data that is read once.
  FFR_IO_AUTO = 3       // The page cache for what is in it; past it where the files do not fit.
};

typedef struct ffr_reader_options {
  size_t struct_size;
  uint32_t io;              // FFR_IO_*.
  uint32_t queue_depth;     // Reads in flight for one batch, 1 to 4096; 0: 64.
  uint32_t skip_checksums;  // Not 0: records are returned without a check of their bytes.
  uint32_t salvage;         // Not 0: open a damaged version 1 file; bad records get a status each.
} ffr_reader_options;

// Reads batches of records of an ordered list of files, by index. Immutable: the files are sealed.
// After fork, parent and child may both go on using a reader.
typedef struct ffr_reader ffr_reader;

// Opens files, version 1 or 2, as one sequence of records in list order; no record is read. Each
// location is a path; or the only one is ffrecord://host[:port]/name, which a daemon serves.
// `options` may be NULL.
//
// Fails with FFR_NOT_FOUND if a file is missing, FFR_CORRUPTION if a header or an index fails its
// check, FFR_INVALID_ARGUMENT if the list is empty, an option is out of range, or the files'
// schemas differ, FFR_DENIED, FFR_IO, or, for an address, FFR_UNAVAILABLE or
// FFR_DEADLINE_EXCEEDED. The message names the file.
FFR_EXPORT ffr_code ffr_reader_open(const char* const* locations, size_t location_count,
                                    const ffr_reader_options* options, ffr_reader** reader,
                                    ffr_error** error);
// Batches and errors that came from it stay.
FFR_EXPORT void ffr_reader_free(ffr_reader* reader);
FFR_EXPORT uint64_t ffr_reader_record_count(const ffr_reader* reader);
FFR_EXPORT size_t ffr_reader_file_count(const ffr_reader* reader);
FFR_EXPORT const ffr_schema* ffr_reader_schema(const ffr_reader* reader);
// Of content and order of all files: changes if any record does. Fills 16 bytes.
FFR_EXPORT void ffr_reader_fingerprint(const ffr_reader* reader, uint8_t* fingerprint);

// The records of one read, in request order, in one block of memory. Immutable.
typedef struct ffr_batch ffr_batch;

// Reads the records `indices`, which may repeat and need no order, in one submission; the calling
// thread waits. A record that cannot be read spoils only its own status.
//
// Fails as a whole with FFR_OUT_OF_RANGE, before anything is read, if an index is not below the
// record count, with FFR_IO (ENOMEM) if there is no memory, and if no read could be tried at all.
FFR_EXPORT ffr_code ffr_reader_read(const ffr_reader* reader, const uint64_t* indices,
                                    size_t index_count, ffr_batch** batch, ffr_error** error);

// Why a record has the status that it has: a new error, to be freed, of that code.
FFR_EXPORT ffr_error* ffr_reader_describe(const ffr_reader* reader, uint64_t index,
                                          ffr_code status);

// 2^64 - 1: what ffr_reader_find gives for a key that no record has.
#define FFR_NO_RECORD UINT64_MAX

// Finds, for each of `keys`, the record that was written with it, of several the one with the
// lowest index: fills `key_count` indices. Reads a few pages of each file that has keys.
//
// Fails with FFR_CORRUPTION if what had to be looked at is damaged, or as ffr_reader_read.
FFR_EXPORT ffr_code ffr_reader_find(const ffr_reader* reader, const ffr_bytes* keys,
                                    size_t key_count, uint64_t* indices, ffr_error** error);
// Reads the values of one fixed-width column of the records [first, first + count), back to back.
// Where the file has a copy of the column, nothing else is read.
//
// Fails with FFR_OUT_OF_RANGE if there are no such records, with FFR_INVALID_ARGUMENT unless the
// column is fixed-width and `destination_size` is `count` times the size of a value, and with a
// record's status if one cannot be read.
FFR_EXPORT ffr_code ffr_reader_column(const ffr_reader* reader, size_t column, uint64_t first,
                                      uint64_t count, void* destination, size_t destination_size,
                                      ffr_error** error);

// What the writer of a file kept with it. Immutable.
typedef struct ffr_metadata ffr_metadata;

// Reads the metadata of the file number `file` of the list; without values if it has none.
//
// Fails with FFR_OUT_OF_RANGE if there is no such file, FFR_CORRUPTION, or as ffr_reader_read.
FFR_EXPORT ffr_code ffr_reader_metadata(const ffr_reader* reader, size_t file,
                                        ffr_metadata** metadata, ffr_error** error);
FFR_EXPORT void ffr_metadata_free(ffr_metadata* metadata);
FFR_EXPORT size_t ffr_metadata_count(const ffr_metadata* metadata);
// Fills `found` with the value at `position`, ascending by name; borrowed from the metadata.
//
// Fails with FFR_OUT_OF_RANGE if there is none.
FFR_EXPORT ffr_code ffr_metadata_at(const ffr_metadata* metadata, size_t position,
                                    ffr_named_bytes* found, ffr_error** error);

FFR_EXPORT void ffr_batch_free(ffr_batch* batch);
FFR_EXPORT size_t ffr_batch_size(const ffr_batch* batch);
// The record at `position` of the request; without bytes unless its status is FFR_OK. Requires
// position < ffr_batch_size().
FFR_EXPORT ffr_bytes ffr_batch_record(const ffr_batch* batch, size_t position);
// FFR_OK, FFR_CORRUPTION, FFR_IO, FFR_UNAVAILABLE or FFR_DEADLINE_EXCEEDED, one byte for each
// record.
FFR_EXPORT const uint8_t* ffr_batch_statuses(const ffr_batch* batch);
// The whole block, and where each record begins in it and how large it is: for callers who take
// all records at once. The same index twice shares its bytes.
FFR_EXPORT ffr_bytes ffr_batch_data(const ffr_batch* batch);
FFR_EXPORT const int64_t* ffr_batch_starts(const ffr_batch* batch);
FFR_EXPORT const int64_t* ffr_batch_sizes(const ffr_batch* batch);

// Where the values of one column lie in ffr_batch_data(): fills ffr_batch_size() starts and sizes;
// both 0 for a record whose status is not FFR_OK.
//
// Fails with FFR_OUT_OF_RANGE if there is no such column, with FFR_CORRUPTION if a record does not
// fit the schema.
FFR_EXPORT ffr_code ffr_batch_column(const ffr_batch* batch, size_t column, int64_t* starts,
                                     int64_t* sizes, ffr_error** error);
// Copies the values of one fixed-width column, back to back, zeros for a record whose status is
// not FFR_OK.
//
// Fails with FFR_OUT_OF_RANGE if there is no such column, with FFR_INVALID_ARGUMENT unless it is
// fixed-width and `destination_size` is ffr_batch_size() times the size of a value.
FFR_EXPORT ffr_code ffr_batch_gather(const ffr_batch* batch, size_t column, void* destination,
                                     size_t destination_size, ffr_error** error);

// --------------------------------------------------------------------------------------- Writing

typedef struct ffr_writer_options {
  size_t struct_size;
  uint32_t compression_level;  // 1 to 19: zstd for each record that it makes smaller; 0: none.
  uint32_t alignment;          // Of each record in the file, in bytes: 1, 512 or 4096; 0: 1.
  uint32_t replace;            // Not 0: replace a file of that name.
  uint32_t keys;               // Not 0: records may have keys, by which readers find them.
  // For many small records that are alike: size in bytes of a zstd dictionary to be trained on the
  // first of them, 1,024 to 16 MiB; 0: none. Or the bytes of one. Both need a compression_level.
  uint32_t train_dictionary_size;
  uint32_t copied_column_count;
  ffr_bytes dictionary;
  // Names of columns whose values are kept once more, so that ffr_reader_column reads them alone:
  // of fixed width, at most 64 bytes each, 512 together.
  const char* const* copied_columns;
  const ffr_named_bytes* metadata;  // Kept with the file, 16 MiB in all. No name twice.
  size_t metadata_count;
} ffr_writer_options;

// Writes one version 2 file, of any number of records, in constant memory. Nothing is visible under
// its name before ffr_writer_close succeeds. Used by one thread at a time.
typedef struct ffr_writer ffr_writer;

// Begins a file at `path`. `schema` NULL: records are just bytes. `options` may be NULL.
//
// Fails with FFR_INVALID_ARGUMENT if an option is out of range, FFR_CONFLICT if `path` exists and
// is not to be replaced, FFR_NOT_FOUND if its folder does not exist, FFR_DENIED, or FFR_IO.
FFR_EXPORT ffr_code ffr_writer_create(const char* path, const ffr_schema* schema,
                                      const ffr_writer_options* options, ffr_writer** writer,
                                      ffr_error** error);
typedef struct ffr_append_options {
  size_t struct_size;
  uint32_t compression_level;       // 1 to 19, for a file that was begun with compression; 0: 3.
  uint32_t store_raw;               // Not 0: nothing that is added is compressed.
  uint64_t commit_interval;         // A commit is made when so many bytes were written since the
                                    // last: 1 MiB to 64 MiB; 0: 64 MiB.
  const ffr_named_bytes* metadata;  // In place of the file's; NULL keeps that.
  size_t metadata_count;
} ffr_append_options;

// Goes on behind the last record of a local file, in place and by one writer at a time; `options`
// may be NULL. Each commit is on stable storage before it counts. After a kill the file is as at
// its last commit; what lies behind that, the next append removes.
//
// Fails with FFR_CONFLICT if another writer appends to the file, FFR_INVALID_ARGUMENT if an option
// is out of range, the file has version 1 or was begun without what an option asks for,
// FFR_NOT_FOUND, FFR_CORRUPTION, FFR_DENIED, or FFR_IO.
FFR_EXPORT ffr_code ffr_writer_append(const char* path, const ffr_append_options* options,
                                      ffr_writer** writer, ffr_error** error);
// Makes what was appended so far durable, and visible to who opens the file from now on.
//
// Fails with FFR_INVALID_ARGUMENT if the file is new, for that is visible after ffr_writer_close;
// with FFR_IO.
FFR_EXPORT ffr_code ffr_writer_commit(ffr_writer* writer, ffr_error** error);

// Adds one record, which is copied.
//
// Fails with FFR_INVALID_ARGUMENT if it does not fit the schema or has 2^40 bytes or more, with
// FFR_IO if the disk refuses; after that every later call fails alike.
FFR_EXPORT ffr_code ffr_writer_write(ffr_writer* writer, const void* data, size_t size,
                                     ffr_error** error);
// Adds one record made of one value for each column of the schema, in its order. Fails likewise.
FFR_EXPORT ffr_code ffr_writer_write_fields(ffr_writer* writer, const ffr_bytes* fields,
                                            size_t field_count, ffr_error** error);
// The same with a key of 1 to 65,535 bytes, which need not be unique; of size 0: without one. Fail
// likewise, and with FFR_INVALID_ARGUMENT if the key is larger or the file was begun without keys.
FFR_EXPORT ffr_code ffr_writer_write_keyed(ffr_writer* writer, const void* data, size_t size,
                                           const void* key, size_t key_size, ffr_error** error);
FFR_EXPORT ffr_code ffr_writer_write_fields_keyed(ffr_writer* writer, const ffr_bytes* fields,
                                                  size_t field_count, const void* key,
                                                  size_t key_size, ffr_error** error);
// Of an append, those of the old file included.
FFR_EXPORT uint64_t ffr_writer_record_count(const ffr_writer* writer);
// Writes the index, syncs, and publishes the file under its name: it is then whole and on stable
// storage. Nothing but ffr_writer_free may follow.
//
// Fails with FFR_IO, or with FFR_CONFLICT if the name has come into being meanwhile; what was there
// before is then untouched.
FFR_EXPORT ffr_code ffr_writer_close(ffr_writer* writer, ffr_error** error);
// Without a successful close before, nothing is left of a new file, and of an append what was
// committed.
FFR_EXPORT void ffr_writer_free(ffr_writer* writer);

// -------------------------------------------------------------------------- Checking and repairing

// Called now and then on the calling thread with bytes done and bytes in all. Returns 0 to go on;
// else the call ends with FFR_DEADLINE_EXCEEDED. Must return, and not by an exception or longjmp.
typedef int (*ffr_progress)(void* context, uint64_t done, uint64_t total);

// What a check or a repair has found. Immutable.
typedef struct ffr_report ffr_report;

FFR_EXPORT void ffr_report_free(ffr_report* report);
// Not 0 if nothing is wrong with the file; of a repair, if nothing is lost.
FFR_EXPORT int ffr_report_is_whole(const ffr_report* report);
// Of the file that was checked; of the new file of a repair.
FFR_EXPORT uint64_t ffr_report_record_count(const ffr_report* report);
// Records that a reader would not return; of a repair, those that the new file lacks.
FFR_EXPORT uint64_t ffr_report_lost_count(const ffr_report* report);
// In words, each line with its place: what is wrong; of a repair, what was kept, made anew, lost.
// At most about a hundred; the rest is only counted.
FFR_EXPORT size_t ffr_report_line_count(const ffr_report* report);
// Borrowed from the report; NULL if there is no such line.
FFR_EXPORT const char* ffr_report_line(const ffr_report* report, size_t line);
// Of a repair: the first thousand ranges [begin, end) of records of the old file that the new one
// lacks, ascending; so an old index becomes a new one.
FFR_EXPORT size_t ffr_report_lost_range_count(const ffr_report* report);
// Fills both.
//
// Fails with FFR_OUT_OF_RANGE if there is no such range.
FFR_EXPORT ffr_code ffr_report_lost_range(const ffr_report* report, size_t range, uint64_t* begin,
                                          uint64_t* end, ffr_error** error);

typedef struct ffr_verify_options {
  size_t struct_size;
  ffr_progress progress;  // NULL: none.
  void* context;          // For `progress`.
} ffr_verify_options;

// Reads every byte of a local file once and checks it. What is found is in the report, and is no
// failure of the call. `options` may be NULL.
//
// Fails as ffr_reader_open if the file cannot be opened at all; with FFR_DEADLINE_EXCEEDED.
FFR_EXPORT ffr_code ffr_verify(const char* path, const ffr_verify_options* options,
                               ffr_report** report, ffr_error** error);

typedef struct ffr_repair_options {
  size_t struct_size;
  uint32_t replace;       // Not 0: replace a file of the destination's name.
  ffr_progress progress;  // NULL: none.
  void* context;          // For `progress`.
} ffr_repair_options;

// Makes a new file of all that is whole in a damaged one, which is only read: records in order with
// their keys, column copies, schema, dictionaries, metadata. `options` may be NULL.
//
// Fails with FFR_CORRUPTION if nothing says what the file is, FFR_CONFLICT if `destination` exists
// and is not to be replaced, FFR_NOT_FOUND, FFR_INVALID_ARGUMENT if the file needs a newer library,
// FFR_IO, or FFR_DEADLINE_EXCEEDED; then there is no new file.
FFR_EXPORT ffr_code ffr_repair(const char* source, const char* destination,
                               const ffr_repair_options* options, ffr_report** report,
                               ffr_error** error);

#ifdef __cplusplus
}
#endif
