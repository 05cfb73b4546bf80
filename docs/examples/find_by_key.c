/* Packs lines "key text" from standard input, appends to what is there, checks the file, and looks
 * a key up.
 *
 *   cc -std=c11 find_by_key.c $(pkg-config --cflags --libs ffrecord) -o find_by_key
 *   printf 'cat meow\ndog woof\n' | ./find_by_key animals.ffr dog
 */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <ffrecord/ffrecord.h>

/* Prints an error, frees it, and gives the exit code. */
static int fail(ffr_error* error) {
  fprintf(stderr, "find_by_key: %s\n", ffr_error_message(error));
  ffr_error_free(error);
  return 1;
}

/* A writer of a new file; if there is one already, of what is added to it. */
static ffr_code begin(const char* path, ffr_writer** writer, ffr_error** error) {
  static const ffr_named_bytes metadata[] = {{"made by", {"find_by_key", 11}}};
  const ffr_writer_options options = {
      .struct_size = sizeof options, .keys = 1, .metadata = metadata, .metadata_count = 1};
  const ffr_code code = ffr_writer_create(path, NULL, &options, writer, error);
  if (code != FFR_CONFLICT) return code;
  ffr_error_free(*error);
  *error = NULL;
  return ffr_writer_append(path, NULL, writer, error);
}

static ffr_code write_lines(ffr_writer* writer, ffr_error** error) {
  char line[4096];
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    const size_t key_size = strcspn(line, " ");
    const char* text = line + key_size + (line[key_size] == ' ');
    const ffr_code code = ffr_writer_write_keyed(writer, text, strlen(text), line, key_size, error);
    if (code != FFR_OK) return code;
  }
  return ffr_writer_close(writer, error); /* Now it is on stable storage. */
}

static ffr_code check(const char* path, ffr_error** error) {
  ffr_report* report = NULL;
  const ffr_code code = ffr_verify(path, NULL, &report, error);
  if (code != FFR_OK) return code;
  for (size_t i = 0; i < ffr_report_line_count(report); ++i)
    printf("%s\n", ffr_report_line(report, i)); /* ffr_repair saves what is whole. */
  if (ffr_report_is_whole(report))
    printf("%" PRIu64 " records, whole\n", ffr_report_record_count(report));
  ffr_report_free(report);
  return FFR_OK;
}

static ffr_code print_record_of(const char* path, const char* key, ffr_error** error) {
  ffr_reader* reader = NULL;
  ffr_batch* batch = NULL;
  const ffr_bytes wanted = {key, strlen(key)};
  uint64_t index = FFR_NO_RECORD;
  ffr_code code = ffr_reader_open(&path, 1, NULL, &reader, error);
  if (code == FFR_OK) code = ffr_reader_find(reader, &wanted, 1, &index, error);
  if (code == FFR_OK && index == FFR_NO_RECORD) printf("no record has the key %s\n", key);
  if (code == FFR_OK && index != FFR_NO_RECORD) {
    code = ffr_reader_read(reader, &index, 1, &batch, error);
    if (code == FFR_OK) {
      const ffr_bytes record = ffr_batch_record(batch, 0);
      printf("record %" PRIu64 ": %.*s\n", index, (int)record.size, (const char*)record.data);
    }
  }
  ffr_batch_free(batch);
  ffr_reader_free(reader);
  return code;
}

int main(int argument_count, char** arguments) {
  if (argument_count != 3) {
    fprintf(stderr, "usage: find_by_key FILE KEY < LINES\n");
    return 2;
  }
  ffr_error* error = NULL;
  ffr_writer* writer = NULL;
  ffr_code code = begin(arguments[1], &writer, &error);
  if (code == FFR_OK) code = write_lines(writer, &error);
  ffr_writer_free(writer);
  if (code == FFR_OK) code = check(arguments[1], &error);
  if (code == FFR_OK) code = print_record_of(arguments[1], arguments[2], &error);
  return code == FFR_OK ? 0 : fail(error);
}
