/* Goal: keys, column copies, metadata, dictionaries, append, the full check and the repair work
 * from C, and their mistakes cost a code and a message.
 * Method: as ffrecord_h_test.c. */

#include "capi_test.h"

/* `call` passes &error on, and fails as check_error says. */
#define CHECK_FAILS(call, expected, part)     \
  do {                                        \
    ffr_error* error = NULL;                  \
    const ffr_code code = (call);             \
    check_error(code, expected, error, part); \
  } while (0)

enum { COUNT = 300 };

#if UINTPTR_MAX == UINT64_MAX
/* Nothing in here ever moves. */
_Static_assert(offsetof(ffr_writer_options, keys) == 20, "layout");
_Static_assert(offsetof(ffr_writer_options, dictionary) == 32, "layout");
_Static_assert(sizeof(ffr_writer_options) == 72, "layout");
_Static_assert(sizeof(ffr_append_options) == 40, "layout");
_Static_assert(sizeof(ffr_verify_options) == 24, "layout");
_Static_assert(sizeof(ffr_repair_options) == 32, "layout");
_Static_assert(sizeof(ffr_named_bytes) == 24, "layout");
_Static_assert(sizeof(ffr_pacing_class) == 16, "layout");
_Static_assert(offsetof(ffr_pacing_options, link_bytes_per_s) == 56, "layout");
_Static_assert(sizeof(ffr_pacing_options) == 72, "layout");
#endif

static const ffr_named_bytes metadata[] = {{"name", {"\0\1", 2}}, {"nothing", {NULL, 0}}};

static ffr_bytes bytes_of(const char* text) {
  const ffr_bytes bytes = {text, strlen(text)};
  return bytes;
}

/* Record i: the label i, and a text that says so; its key is "key i". */
static void write_record(ffr_writer* writer, int64_t i) {
  char text[64], key[32];
  snprintf(text, sizeof text, "words that come again and again, number %d", (int)i);
  snprintf(key, sizeof key, "key %d", (int)i);
  const ffr_bytes fields[] = {{&i, sizeof i}, bytes_of(text)};
  CHECK(ffr_writer_write_fields_keyed(writer, fields, 2, key, strlen(key), NULL) == FFR_OK);
}

static void write_file(const char* path) {
  static const ffr_column columns[] = {{"label", FFR_I64, 0, NULL}, {"text", FFR_UTF8, 0, NULL}};
  static const char* const copied[] = {"label"};
  ffr_schema* schema = NULL;
  CHECK(ffr_schema_make(columns, 2, &schema, NULL) == FFR_OK);
  const ffr_writer_options options = {.struct_size = sizeof options,
                                      .compression_level = 3,
                                      .keys = 1,
                                      .train_dictionary_size = 1024,
                                      .copied_column_count = 1,
                                      .copied_columns = copied,
                                      .metadata = metadata,
                                      .metadata_count = 2};
  ffr_writer* writer = NULL;
  CHECK(ffr_writer_create(path, schema, &options, &writer, NULL) == FFR_OK);
  for (int64_t i = 0; i < COUNT; ++i) write_record(writer, i);
  CHECK(ffr_writer_close(writer, NULL) == FFR_OK);
  ffr_writer_free(writer);
  ffr_schema_free(schema);
}

static ffr_reader* open_file(const char* path) {
  ffr_reader* reader = NULL;
  CHECK(ffr_reader_open(&path, 1, NULL, &reader, NULL) == FFR_OK);
  return reader;
}

static void keys_find_their_records(void) {
  ffr_reader* reader = open_file(path_of("all.ffr"));
  const ffr_bytes keys[] = {bytes_of("key 7"), bytes_of("none"), bytes_of("key 299"), {NULL, 0}};
  uint64_t found[4] = {1, 1, 1, 1};
  CHECK(ffr_reader_find(reader, keys, 4, found, NULL) == FFR_OK);
  CHECK(found[0] == 7 && found[1] == FFR_NO_RECORD && found[2] == 299 && found[3] == FFR_NO_RECORD);
  CHECK(ffr_reader_find(reader, NULL, 0, NULL, NULL) == FFR_OK);

  const ffr_bytes missing = {NULL, 3};
  CHECK_FAILS(ffr_reader_find(reader, &missing, 1, found, &error), FFR_INVALID_ARGUMENT, "key 0");
  CHECK_FAILS(ffr_reader_find(reader, keys, 1, NULL, &error), FFR_INVALID_ARGUMENT, "NULL");
  ffr_reader_free(reader);
}

static void column_is_read_alone(void) {
  ffr_reader* reader = open_file(path_of("all.ffr"));
  int64_t labels[COUNT];
  CHECK(ffr_reader_column(reader, 0, 10, 20, labels, 20 * sizeof *labels, NULL) == FFR_OK);
  for (int64_t i = 0; i < 20; ++i) CHECK(labels[i] == 10 + i);

  CHECK_FAILS(ffr_reader_column(reader, 2, 0, 1, labels, 8, &error), FFR_OUT_OF_RANGE, "2");
  CHECK_FAILS(ffr_reader_column(reader, 1, 0, 1, labels, 8, &error), FFR_INVALID_ARGUMENT, "");
  CHECK_FAILS(ffr_reader_column(reader, 0, 0, 1, labels, 7, &error), FFR_INVALID_ARGUMENT, "");
  CHECK_FAILS(ffr_reader_column(reader, 0, COUNT, 1, labels, 8, &error), FFR_OUT_OF_RANGE, "");
  ffr_reader_free(reader);
}

static void metadata_is(const char* path, const ffr_named_bytes* expected, size_t count) {
  ffr_reader* reader = open_file(path);
  ffr_metadata* read = NULL;
  CHECK(ffr_reader_metadata(reader, 0, &read, NULL) == FFR_OK);
  CHECK_FAILS(ffr_reader_metadata(reader, 1, &read, &error), FFR_OUT_OF_RANGE, "");
  ffr_reader_free(reader); /* The metadata stays. */
  CHECK(ffr_metadata_count(read) == count);
  ffr_named_bytes found;
  for (size_t i = 0; i < count; ++i) {
    CHECK(ffr_metadata_at(read, i, &found, NULL) == FFR_OK);
    CHECK(strcmp(found.name, expected[i].name) == 0);
    CHECK(found.value.size == expected[i].value.size);
    CHECK(found.value.size == 0 ||
          memcmp(found.value.data, expected[i].value.data, found.value.size) == 0);
  }
  CHECK_FAILS(ffr_metadata_at(read, count, &found, &error), FFR_OUT_OF_RANGE, "");
  ffr_metadata_free(read);
}

static void append_goes_on_in_commits(void) {
  char path[1024];
  snprintf(path, sizeof path, "%s", path_of("grows.ffr"));
  write_file(path);
  const ffr_append_options options = {
      .struct_size = sizeof options, .metadata = metadata, .metadata_count = 1};
  ffr_writer* writer = NULL;
  CHECK(ffr_writer_append(path, &options, &writer, NULL) == FFR_OK);
  ffr_writer* other = NULL;
  CHECK_FAILS(ffr_writer_append(path, NULL, &other, &error), FFR_CONFLICT, "");
  CHECK(ffr_writer_record_count(writer) == COUNT);
  write_record(writer, COUNT);
  CHECK(ffr_writer_commit(writer, NULL) == FFR_OK);
  write_record(writer, COUNT + 1);
  ffr_writer_free(writer); /* What was committed stays. */

  ffr_reader* reader = open_file(path);
  CHECK(ffr_reader_record_count(reader) == COUNT + 1);
  const ffr_bytes keys[] = {bytes_of("key 300"), bytes_of("key 301")};
  uint64_t found[2];
  CHECK(ffr_reader_find(reader, keys, 2, found, NULL) == FFR_OK);
  CHECK(found[0] == COUNT && found[1] == FFR_NO_RECORD);
  ffr_reader_free(reader);
  metadata_is(path, metadata, 1);

  CHECK(ffr_writer_append(path, NULL, &writer, NULL) == FFR_OK);
  CHECK(ffr_writer_close(writer, NULL) == FFR_OK);
  ffr_writer_free(writer);
  metadata_is(path, metadata, 1);
  const ffr_append_options none = {.struct_size = sizeof none, .metadata = metadata};
  CHECK(ffr_writer_append(path, &none, &writer, NULL) == FFR_OK);
  CHECK(ffr_writer_close(writer, NULL) == FFR_OK);
  ffr_writer_free(writer);
  metadata_is(path, NULL, 0);
}

static void mistakes_of_writers_are_told(void) {
  ffr_writer* writer = NULL;
  const char* path = path_of("wrong.ffr");
  ffr_writer_options options = {.struct_size = sizeof options, .train_dictionary_size = 4096};
  CHECK_FAILS(ffr_writer_create(path, NULL, &options, &writer, &error), FFR_INVALID_ARGUMENT,
              "compress");
  options.compression_level = 1;
  options.train_dictionary_size = 7;
  CHECK_FAILS(ffr_writer_create(path, NULL, &options, &writer, &error), FFR_INVALID_ARGUMENT,
              "1,024");
  options.train_dictionary_size = 0;
  options.dictionary = bytes_of("no dictionary");
  CHECK_FAILS(ffr_writer_create(path, NULL, &options, &writer, &error), FFR_INVALID_ARGUMENT,
              "zstd");
  options.dictionary.data = NULL;
  CHECK_FAILS(ffr_writer_create(path, NULL, &options, &writer, &error), FFR_INVALID_ARGUMENT,
              "NULL");
  options.dictionary.size = 0;
  const ffr_named_bytes twice[] = {metadata[0], metadata[0]};
  options.metadata = twice;
  options.metadata_count = 2;
  CHECK_FAILS(ffr_writer_create(path, NULL, &options, &writer, &error), FFR_INVALID_ARGUMENT,
              "two values named name");
  options.metadata = NULL;
  CHECK_FAILS(ffr_writer_create(path, NULL, &options, &writer, &error), FFR_INVALID_ARGUMENT,
              "NULL");
  options.metadata_count = 0;
  options.copied_column_count = 1;
  CHECK_FAILS(ffr_writer_create(path, NULL, &options, &writer, &error), FFR_INVALID_ARGUMENT,
              "NULL");
  options.copied_column_count = 0;
  CHECK(writer == NULL);

  CHECK(ffr_writer_create(path, NULL, &options, &writer, NULL) == FFR_OK);
  CHECK_FAILS(ffr_writer_write_keyed(writer, "a", 1, "key", 3, &error), FFR_INVALID_ARGUMENT,
              "without keys");
  CHECK_FAILS(ffr_writer_write_keyed(writer, "a", 1, NULL, 3, &error), FFR_INVALID_ARGUMENT,
              "NULL");
  CHECK_FAILS(ffr_writer_commit(writer, &error), FFR_INVALID_ARGUMENT, "new file");
  ffr_writer_free(writer);
  CHECK_FAILS(ffr_writer_append(path, NULL, &writer, &error), FFR_NOT_FOUND, "wrong.ffr");
  ffr_append_options append = {.struct_size = sizeof append, .commit_interval = 1};
  CHECK_FAILS(ffr_writer_append(path_of("all.ffr"), &append, &writer, &error), FFR_INVALID_ARGUMENT,
              "1 MiB");
}

static int count_calls(void* context, uint64_t done, uint64_t total) {
  CHECK(done <= total);
  ++*(int*)context;
  return 0;
}

static int break_off(void* context, uint64_t done, uint64_t total) {
  (void)context, (void)done, (void)total;
  return 1;
}

static int has_line(const ffr_report* report, const char* wanted) {
  for (size_t i = 0; i < ffr_report_line_count(report); ++i)
    if (strstr(ffr_report_line(report, i), wanted) != NULL) return 1;
  return 0;
}

/* Changes the first byte of the payload of record 0, behind the schema and the dictionary. */
static void damage_first_record(const char* from, const char* to) {
  FILE* file = fopen(from, "rb");
  CHECK(file != NULL);
  static char content[1 << 20];
  const size_t size = fread(content, 1, sizeof content, file);
  fclose(file);
  size_t at = 128;
  while (at + 36 < size && memcmp(content + at, "\xe5REC", 4) != 0) ++at;
  CHECK(at + 36 < size);
  content[at + 32] ^= 1;
  file = fopen(to, "wb");
  CHECK(file != NULL && fwrite(content, 1, size, file) == size && fclose(file) == 0);
}

static void files_are_checked_and_repaired(void) {
  char whole[1024], damaged[1024], repaired[1024];
  snprintf(whole, sizeof whole, "%s", path_of("all.ffr"));
  snprintf(damaged, sizeof damaged, "%s", path_of("damaged.ffr"));
  snprintf(repaired, sizeof repaired, "%s", path_of("repaired.ffr"));
  damage_first_record(whole, damaged);

  int calls = 0;
  const ffr_verify_options counted = {
      .struct_size = sizeof counted, .progress = count_calls, .context = &calls};
  ffr_report* report = NULL;
  CHECK(ffr_verify(whole, &counted, &report, NULL) == FFR_OK);
  CHECK(calls > 0 && ffr_report_is_whole(report) && ffr_report_record_count(report) == COUNT);
  CHECK(ffr_report_line_count(report) == 0 && ffr_report_line(report, 0) == NULL);
  ffr_report_free(report);
  CHECK(ffr_verify(damaged, NULL, &report, NULL) == FFR_OK);
  CHECK(!ffr_report_is_whole(report) && ffr_report_lost_count(report) == 1);
  CHECK(has_line(report, "record 0"));
  ffr_report_free(report);

  CHECK(ffr_repair(damaged, repaired, NULL, &report, NULL) == FFR_OK);
  CHECK(!ffr_report_is_whole(report) && ffr_report_lost_count(report) == 1);
  CHECK(ffr_report_record_count(report) == COUNT - 1);
  CHECK(has_line(report, "kept: the dictionary") && has_line(report, "rebuilt: the keys: 299"));
  CHECK(ffr_report_lost_range_count(report) == 1);
  uint64_t begin = 9, end = 9;
  CHECK(ffr_report_lost_range(report, 0, &begin, &end, NULL) == FFR_OK && begin == 0 && end == 1);
  CHECK_FAILS(ffr_report_lost_range(report, 1, &begin, &end, &error), FFR_OUT_OF_RANGE, "1");
  ffr_report_free(report);
  metadata_is(repaired, metadata, 2);
  ffr_reader* reader = open_file(repaired);
  const ffr_bytes key = bytes_of("key 7");
  uint64_t found = 0;
  CHECK(ffr_reader_find(reader, &key, 1, &found, NULL) == FFR_OK && found == 6);
  ffr_reader_free(reader);

  report = NULL;
  CHECK_FAILS(ffr_repair(damaged, repaired, NULL, &report, &error), FFR_CONFLICT, "");
  ffr_repair_options options = {.struct_size = sizeof options, .replace = 1};
  CHECK(ffr_repair(damaged, repaired, &options, &report, NULL) == FFR_OK);
  ffr_report_free(report);
  options.progress = break_off;
  CHECK_FAILS(ffr_repair(damaged, repaired, &options, &report, &error), FFR_DEADLINE_EXCEEDED,
              "cancelled");
  CHECK_FAILS(ffr_verify(path_of("missing.ffr"), NULL, &report, &error), FFR_NOT_FOUND, "");
  CHECK_FAILS(ffr_verify(NULL, NULL, &report, &error), FFR_INVALID_ARGUMENT, "NULL");
  CHECK_FAILS(ffr_repair(damaged, NULL, NULL, &report, &error), FFR_INVALID_ARGUMENT, "NULL");
  ffr_report_free(NULL);
  ffr_metadata_free(NULL);
}

static void phases_are_signalled_with_and_without_pacing(void) {
  ffr_phase_begin(FFR_PHASE_COLLECTIVE, 1);
  ffr_phase_end(FFR_PHASE_COLLECTIVE);
  CHECK(ffr_pacing_start(NULL, NULL) == FFR_OK);
  ffr_phase_begin(FFR_PHASE_POINT_TO_POINT, 1);
  ffr_phase_begin(12345, 0); /* Of another kind, whatever that is. */
  ffr_phase_end(12345);
  ffr_phase_end(FFR_PHASE_POINT_TO_POINT);
  ffr_phase_end(FFR_PHASE_OTHER); /* None is open. */
  ffr_step_end();
  ffr_pacing_options options = {.struct_size = sizeof options, .link_bytes_per_s = 125000000};
  CHECK(ffr_pacing_start(&options, NULL) == FFR_OK);
  options.checkpoint.longest_hold_ms = 60001;
  CHECK_FAILS(ffr_pacing_start(&options, &error), FFR_INVALID_ARGUMENT, "checkpoint.longest_hold");
  ffr_pacing_stop();
  ffr_pacing_stop();
}

int main(void) {
  make_folder();
  write_file(path_of("all.ffr"));
  keys_find_their_records();
  column_is_read_alone();
  metadata_is(path_of("all.ffr"), metadata, 2);
  append_goes_on_in_commits();
  mistakes_of_writers_are_told();
  files_are_checked_and_repaired();
  phases_are_signalled_with_and_without_pacing();
  remove_folder();
  return 0;
}
