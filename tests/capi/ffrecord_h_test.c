/* Goal: a C program writes and reads files through ffrecord.h alone, and every mistake that it can
 * make costs it a code and a message, never the process.
 * Method: C11 with all warnings, linked with the shared library as an outsider is, in a folder of
 * its own. Prints the first check that fails, exits with 1, and leaves the folder behind. */

#include "capi_test.h"

static void write_texts(const char* path, const char* const* texts, size_t count) {
  ffr_writer* writer = NULL;
  CHECK(ffr_writer_create(path, NULL, NULL, &writer, NULL) == FFR_OK);
  for (size_t i = 0; i < count; ++i)
    CHECK(ffr_writer_write(writer, texts[i], strlen(texts[i]), NULL) == FFR_OK);
  CHECK(ffr_writer_record_count(writer) == count);
  CHECK(ffr_writer_close(writer, NULL) == FFR_OK);
  ffr_writer_free(writer);
}

static ffr_reader* open_file(const char* path) {
  ffr_reader* reader = NULL;
  ffr_error* error = NULL;
  if (ffr_reader_open(&path, 1, NULL, &reader, &error) != FFR_OK) {
    fprintf(stderr, "%s\n", ffr_error_message(error));
    exit(1);
  }
  CHECK(error == NULL);
  return reader;
}

static int record_is(const ffr_batch* batch, size_t position, const char* text) {
  const ffr_bytes record = ffr_batch_record(batch, position);
  return record.size == strlen(text) &&
         (record.size == 0 || memcmp(record.data, text, record.size) == 0);
}

static void version_is_that_of_the_header(void) {
  CHECK(ffr_api_version() == FFR_API_VERSION);
  CHECK(strchr(ffr_library_version(), '.') != NULL);
}

static void records_come_back_in_request_order(void) {
  static const char* const texts[] = {"zero", "", "second"};
  write_texts(path_of("texts.ffr"), texts, 3);
  ffr_reader* reader = open_file(path_of("texts.ffr"));
  CHECK(ffr_reader_record_count(reader) == 3);
  CHECK(ffr_reader_file_count(reader) == 1);
  CHECK(ffr_schema_column_count(ffr_reader_schema(reader)) == 0);

  static const uint64_t indices[] = {2, 0, 1, 2};
  ffr_batch* batch = NULL;
  CHECK(ffr_reader_read(reader, indices, 4, &batch, NULL) == FFR_OK);
  ffr_reader_free(reader); /* The batch stays. */

  CHECK(ffr_batch_size(batch) == 4);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(ffr_batch_statuses(batch)[i] == FFR_OK);
    CHECK(record_is(batch, i, texts[indices[i]]));
    const ffr_bytes record = ffr_batch_record(batch, i);
    const char* data = ffr_batch_data(batch).data;
    CHECK(ffr_batch_sizes(batch)[i] == (int64_t)record.size);
    CHECK(record.size == 0 || data + ffr_batch_starts(batch)[i] == (const char*)record.data);
  }
  ffr_batch_free(batch);
}

static void several_files_are_one_sequence(void) {
  static const char* const first[] = {"a", "b"};
  static const char* const second[] = {"c"};
  char one[1024], two[1024];
  snprintf(one, sizeof one, "%s", path_of("one.ffr"));
  snprintf(two, sizeof two, "%s", path_of("two.ffr"));
  write_texts(one, first, 2);
  write_texts(two, second, 1);
  const char* const files[] = {one, two, one};
  ffr_reader_options options = {.struct_size = sizeof options, .io = FFR_IO_DIRECT};
  options.queue_depth = 2;
  ffr_reader* reader = NULL;
  CHECK(ffr_reader_open(files, 3, &options, &reader, NULL) == FFR_OK);
  CHECK(ffr_reader_record_count(reader) == 5);
  CHECK(ffr_reader_file_count(reader) == 3);
  static const uint64_t indices[] = {4, 2};
  ffr_batch* batch = NULL;
  CHECK(ffr_reader_read(reader, indices, 2, &batch, NULL) == FFR_OK);
  CHECK(record_is(batch, 0, "b"));
  CHECK(record_is(batch, 1, "c"));
  ffr_batch_free(batch);

  uint8_t all[16], alone[16];
  ffr_reader_fingerprint(reader, all);
  ffr_reader_free(reader);
  reader = open_file(one);
  ffr_reader_fingerprint(reader, alone);
  ffr_reader_free(reader);
  CHECK(memcmp(all, alone, sizeof all) != 0);
}

static ffr_schema* make_schema(void) {
  static const uint64_t shape[] = {2, 2};
  static const ffr_column columns[] = {
      {"label", FFR_I64, 0, NULL}, {"box", FFR_F32, 2, shape}, {"name", FFR_UTF8, 0, NULL}};
  ffr_schema* schema = NULL;
  CHECK(ffr_schema_make(columns, 3, &schema, NULL) == FFR_OK);
  return schema;
}

static void write_samples(const char* path) {
  ffr_schema* schema = make_schema();
  ffr_writer_options options = {.struct_size = sizeof options, .compression_level = 3};
  options.alignment = 512;
  ffr_writer* writer = NULL;
  CHECK(ffr_writer_create(path, schema, &options, &writer, NULL) == FFR_OK);
  ffr_schema_free(schema);
  for (int64_t label = 0; label < 3; ++label) {
    const float box[] = {0, 1, 2, (float)label};
    const ffr_bytes fields[] = {{&label, sizeof label}, {box, sizeof box}, {"abc", (size_t)label}};
    CHECK(ffr_writer_write_fields(writer, fields, 3, NULL) == FFR_OK);
  }
  const ffr_bytes short_fields[] = {{"x", 1}, {NULL, 0}, {NULL, 0}};
  ffr_error* error = NULL;
  const ffr_code code = ffr_writer_write_fields(writer, short_fields, 3, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "record 3");
  CHECK(ffr_writer_close(writer, NULL) == FFR_OK); /* The bad one spoiled nothing. */
  ffr_writer_free(writer);
}

static void columns_come_back_as_they_were_written(void) {
  write_samples(path_of("samples.ffr"));
  ffr_reader* reader = open_file(path_of("samples.ffr"));
  const ffr_schema* schema = ffr_reader_schema(reader);
  CHECK(ffr_schema_column_count(schema) == 3);
  ffr_column box;
  CHECK(ffr_schema_column(schema, 1, &box, NULL) == FFR_OK);
  CHECK(strcmp(box.name, "box") == 0 && box.type == FFR_F32);
  CHECK(box.shape_size == 2 && box.shape[0] == 2 && box.shape[1] == 2);

  static const uint64_t indices[] = {2, 1};
  ffr_batch* batch = NULL;
  CHECK(ffr_reader_read(reader, indices, 2, &batch, NULL) == FFR_OK);
  int64_t labels[2];
  CHECK(ffr_batch_gather(batch, 0, labels, sizeof labels, NULL) == FFR_OK);
  CHECK(labels[0] == 2 && labels[1] == 1);
  int64_t starts[2], sizes[2];
  CHECK(ffr_batch_column(batch, 2, starts, sizes, NULL) == FFR_OK);
  CHECK(sizes[0] == 2 && sizes[1] == 1);
  CHECK(memcmp((const char*)ffr_batch_data(batch).data + starts[0], "ab", 2) == 0);

  ffr_error* error = NULL;
  ffr_code code = ffr_batch_gather(batch, 3, labels, sizeof labels, &error);
  check_error(code, FFR_OUT_OF_RANGE, error, "3 columns");
  code = ffr_batch_gather(batch, 0, labels, sizeof labels - 1, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "");
  code = ffr_batch_column(batch, 9, starts, sizes, &error);
  check_error(code, FFR_OUT_OF_RANGE, error, "9");
  code = ffr_schema_column(schema, 3, &box, &error);
  check_error(code, FFR_OUT_OF_RANGE, error, "3 columns");
  ffr_batch_free(batch);
  ffr_reader_free(reader);
}

static void damage_costs_its_own_record_only(void) {
  static const char* const texts[] = {"good", "damaged", "whole"};
  const char* path = path_of("damaged.ffr");
  write_texts(path, texts, 3);
  FILE* file = fopen(path, "r+b");
  CHECK(file != NULL);
  static char content[1 << 16];
  const size_t size = fread(content, 1, sizeof content, file);
  size_t at = 0;
  while (at + 7 < size && memcmp(content + at, "damaged", 7) != 0) ++at;
  CHECK(at + 7 < size);
  CHECK(fseek(file, (long)at, SEEK_SET) == 0 && fputc('D', file) == 'D' && fclose(file) == 0);

  ffr_reader* reader = open_file(path);
  static const uint64_t indices[] = {0, 1, 2};
  ffr_batch* batch = NULL;
  CHECK(ffr_reader_read(reader, indices, 3, &batch, NULL) == FFR_OK);
  CHECK(ffr_batch_statuses(batch)[0] == FFR_OK && ffr_batch_statuses(batch)[2] == FFR_OK);
  CHECK(ffr_batch_statuses(batch)[1] == FFR_CORRUPTION);
  CHECK(ffr_batch_record(batch, 1).size == 0 && record_is(batch, 2, "whole"));
  check_error(FFR_CORRUPTION, FFR_CORRUPTION, ffr_reader_describe(reader, 1, FFR_CORRUPTION),
              "record 1");
  ffr_batch_free(batch);
  ffr_reader_free(reader);
}

static void unclosed_file_leaves_nothing(void) {
  ffr_writer* writer = NULL;
  CHECK(ffr_writer_create(path_of("never.ffr"), NULL, NULL, &writer, NULL) == FFR_OK);
  CHECK(ffr_writer_write(writer, "abc", 3, NULL) == FFR_OK);
  ffr_writer_free(writer);
  FILE* file = fopen(path_of("never.ffr"), "rb");
  CHECK(file == NULL && errno == ENOENT);
}

static void file_is_replaced_only_on_request(void) {
  static const char* const texts[] = {"old"};
  const char* path = path_of("kept.ffr");
  write_texts(path, texts, 1);
  ffr_writer* writer = NULL;
  ffr_error* error = NULL;
  ffr_code code = ffr_writer_create(path, NULL, NULL, &writer, &error);
  check_error(code, FFR_CONFLICT, error, "kept.ffr");
  CHECK(writer == NULL);
  ffr_writer_options options = {.struct_size = sizeof options, .replace = 1};
  CHECK(ffr_writer_create(path, NULL, &options, &writer, NULL) == FFR_OK);
  CHECK(ffr_writer_close(writer, NULL) == FFR_OK);
  code = ffr_writer_close(writer, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "closed already");
  code = ffr_writer_write(writer, "x", 1, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "closed");
  ffr_writer_free(writer);
  ffr_reader* reader = open_file(path);
  CHECK(ffr_reader_record_count(reader) == 0);
  ffr_reader_free(reader);
}

static void mistakes_are_told(void) {
  ffr_reader* reader = NULL;
  ffr_error* error = NULL;
  const char* missing = path_of("missing.ffr");
  ffr_code code = ffr_reader_open(&missing, 1, NULL, &reader, &error);
  check_error(code, FFR_NOT_FOUND, error, "missing.ffr");
  CHECK(ffr_reader_open(&missing, 1, NULL, &reader, NULL) == FFR_NOT_FOUND);
  code = ffr_reader_open(NULL, 0, NULL, &reader, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "");
  const char* const null_path[] = {NULL};
  code = ffr_reader_open(null_path, 1, NULL, &reader, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "NULL");
  CHECK(reader == NULL);

  static const char* const texts[] = {"only"};
  write_texts(path_of("only.ffr"), texts, 1);
  reader = open_file(path_of("only.ffr"));
  static const uint64_t outside[] = {0, 1};
  ffr_batch* batch = NULL;
  code = ffr_reader_read(reader, outside, 2, &batch, &error);
  check_error(code, FFR_OUT_OF_RANGE, error, "1");
  code = ffr_reader_read(reader, NULL, 2, &batch, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "NULL");
  CHECK(batch == NULL);
  CHECK(ffr_reader_read(reader, NULL, 0, &batch, NULL) == FFR_OK);
  CHECK(ffr_batch_size(batch) == 0);
  ffr_batch_free(batch);
  ffr_reader_free(reader);

  ffr_schema* schema = NULL;
  static const ffr_column unknown = {"x", 14, 0, NULL};
  code = ffr_schema_make(&unknown, 1, &schema, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "type 14");
  static const uint64_t one = 1;
  static const ffr_column deep = {"x", FFR_U8, 33, &one};
  code = ffr_schema_make(&deep, 1, &schema, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "33 dimensions");
  code = ffr_schema_make(&unknown, 1025, &schema, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "1025");
  CHECK(schema == NULL);
  ffr_reader_free(NULL);
  ffr_batch_free(NULL);
  ffr_writer_free(NULL);
  ffr_schema_free(NULL);
  ffr_error_free(NULL);
}

/* Programs are built with an older header than the library's, or with a newer one. */
static void options_grow(void) {
  static const char* const texts[] = {"x"};
  const char* path = path_of("grow.ffr");
  write_texts(path, texts, 1);
  ffr_reader* reader = NULL;
  ffr_error* error = NULL;
  ffr_reader_options older = {.struct_size = offsetof(ffr_reader_options, queue_depth)};
  older.queue_depth = 5000; /* Out of range, but not part of the older structure. */
  CHECK(ffr_reader_open(&path, 1, &older, &reader, NULL) == FFR_OK);
  ffr_reader_free(reader);

  struct {
    ffr_reader_options known;
    uint64_t field;
  } newer = {.known = {.struct_size = sizeof newer}};
  CHECK(ffr_reader_open(&path, 1, &newer.known, &reader, NULL) == FFR_OK);
  ffr_reader_free(reader);
  newer.field = 1;
  ffr_code code = ffr_reader_open(&path, 1, &newer.known, &reader, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "does not know");

  ffr_reader_options options = {.struct_size = 0};
  code = ffr_reader_open(&path, 1, &options, &reader, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "struct_size is 0");
  options.struct_size = sizeof options;
  options.io = FFR_IO_AUTO;
  CHECK(ffr_reader_open(&path, 1, &options, &reader, NULL) == FFR_OK);
  ffr_reader_free(reader);
  options.io = 77;
  code = ffr_reader_open(&path, 1, &options, &reader, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "io is 77");
  options.io = FFR_IO_BUFFERED;
  options.queue_depth = 5000;
  code = ffr_reader_open(&path, 1, &options, &reader, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "queue_depth");
  ffr_writer* writer = NULL;
  ffr_writer_options level = {.struct_size = sizeof level, .compression_level = 20};
  code = ffr_writer_create(path_of("level.ffr"), NULL, &level, &writer, &error);
  check_error(code, FFR_INVALID_ARGUMENT, error, "compression_level is 20");
}

static void a_queue_reads_many_batches(void) {
  static const char* const texts[] = {"zero", "one", "two"};
  write_texts(path_of("queue.ffr"), texts, 3);
  ffr_reader* reader = open_file(path_of("queue.ffr"));
  ffr_queue_options options = {.struct_size = sizeof options, .batches_in_flight = 65};
  ffr_queue* queue = NULL;
  CHECK(ffr_queue_open(reader, &options, &queue, NULL) == FFR_INVALID_ARGUMENT);
  CHECK(ffr_queue_open(NULL, NULL, &queue, NULL) == FFR_INVALID_ARGUMENT);
  options.batches_in_flight = 2;
  options.in_order = 1;
  CHECK(ffr_queue_open(reader, &options, &queue, NULL) == FFR_OK);
  int descriptor = -1;
  CHECK(ffr_queue_descriptor(queue, &descriptor, NULL) == FFR_OK && descriptor >= 0);

  for (uint64_t token = 0; token < 6; ++token) {
    const uint64_t indices[] = {token % 3, 2};
    CHECK(ffr_queue_submit(queue, indices, 2, token, -1, NULL) == FFR_OK);
  }
  const uint64_t beyond = 3;
  CHECK(ffr_queue_submit(queue, &beyond, 1, 9, -1, NULL) == FFR_OUT_OF_RANGE);
  CHECK(ffr_queue_size(queue) == 6);
  CHECK(ffr_queue_cancel(queue, 4) == 1 && ffr_queue_cancel(queue, 4) == 0);
  ffr_completion done;
  for (uint64_t token = 0; token < 6; ++token) {
    if (token == 4) continue;
    CHECK(ffr_queue_poll(queue, 10000, &done, NULL) == FFR_OK);
    CHECK(done.is_complete && done.token == token && done.error == NULL);
    CHECK(record_is(done.batch, 0, texts[token % 3]) && record_is(done.batch, 1, "two"));
    ffr_batch_free(done.batch);
  }
  CHECK(ffr_queue_poll(queue, -1, &done, NULL) == FFR_OK && !done.is_complete);

  const uint64_t first = 0; /* Its time is over before it begins. */
  CHECK(ffr_queue_submit(queue, &first, 1, 7, 0, NULL) == FFR_OK);
  CHECK(ffr_queue_poll(queue, -1, &done, NULL) == FFR_OK && done.is_complete);
  CHECK(done.batch == NULL && ffr_error_code(done.error) == FFR_DEADLINE_EXCEEDED);
  ffr_error_free(done.error);
  CHECK(ffr_queue_submit(queue, &first, 1, 8, -1, NULL) == FFR_OK);
  ffr_queue_free(queue); /* With a batch that nobody took. */
  ffr_reader_free(reader);
}

int main(void) {
  make_folder();
  version_is_that_of_the_header();
  records_come_back_in_request_order();
  several_files_are_one_sequence();
  a_queue_reads_many_batches();
  columns_come_back_as_they_were_written();
  damage_costs_its_own_record_only();
  unclosed_file_leaves_nothing();
  file_is_replaced_only_on_request();
  mistakes_are_told();
  options_grow();
  remove_folder();
  return 0;
}
