/* Reads the records whose indices are given, in one batch, and prints their sizes.
 *
 *   cc -std=c11 read_batch.c $(pkg-config --cflags --libs ffrecord) -o read_batch
 *   ./read_batch train.ffr 17 4 999
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <ffrecord/ffrecord.h>

enum { BATCH_MAX = 64 };

/* Prints an error, frees it, and gives the exit code. */
static int fail(ffr_error* error) {
  fprintf(stderr, "read_batch: %s\n", ffr_error_message(error));
  ffr_error_free(error);
  return 1;
}

static void print_records(const ffr_reader* reader, const uint64_t* indices,
                          const ffr_batch* batch) {
  for (size_t i = 0; i < ffr_batch_size(batch); ++i) {
    const uint8_t status = ffr_batch_statuses(batch)[i];
    if (status == FFR_OK) {
      const ffr_bytes record = ffr_batch_record(batch, i);
      printf("record %" PRIu64 ": %zu bytes\n", indices[i], record.size);
    } else { /* One bad record spoils no other. */
      ffr_error* why = ffr_reader_describe(reader, indices[i], status);
      printf("record %" PRIu64 ": %s\n", indices[i], ffr_error_message(why));
      ffr_error_free(why);
    }
  }
}

int main(int argument_count, char** arguments) {
  if (argument_count < 3 || argument_count > 2 + BATCH_MAX) {
    fprintf(stderr, "usage: read_batch FILE INDEX...\n");
    return 2;
  }
  const char* const files[] = {arguments[1]};
  const size_t count = (size_t)argument_count - 2;
  uint64_t indices[BATCH_MAX];
  for (size_t i = 0; i < count; ++i) indices[i] = strtoull(arguments[i + 2], NULL, 10);

  ffr_error* error = NULL;
  ffr_reader* reader = NULL;
  if (ffr_reader_open(files, 1, NULL, &reader, &error) != FFR_OK) return fail(error);
  ffr_batch* batch = NULL;
  if (ffr_reader_read(reader, indices, count, &batch, &error) != FFR_OK) {
    ffr_reader_free(reader);
    return fail(error);
  }
  print_records(reader, indices, batch);
  ffr_batch_free(batch);
  ffr_reader_free(reader);
  return 0;
}
