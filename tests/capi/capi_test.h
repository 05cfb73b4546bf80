/* What the tests of ffrecord.h share: checks that end the process, and a folder of its own. */

#pragma once

#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ffrecord/ffrecord.h>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, __func__, #condition); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

static char folder[512];

static const char* path_of(const char* name) {
  static char path[1024];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

/* `code` with the object that came with it: both say `expected`, and the text says `part`. */
static void check_error(ffr_code code, ffr_code expected, ffr_error* error, const char* part) {
  CHECK(code == expected);
  CHECK(error != NULL);
  CHECK(ffr_error_code(error) == expected);
  if (strstr(ffr_error_message(error), part) == NULL) {
    fprintf(stderr, "no \"%s\" in: %s\n", part, ffr_error_message(error));
    exit(1);
  }
  ffr_error_free(error);
}

static void make_folder(void) {
  const char* temporary = getenv("TMPDIR");
  snprintf(folder, sizeof folder, "%s/ffrecord_h_test-XXXXXX",
           temporary != NULL ? temporary : "/tmp");
  CHECK(mkdtemp(folder) != NULL);
}

static void remove_folder(void) {
  DIR* entries = opendir(folder);
  CHECK(entries != NULL);
  for (const struct dirent* entry; (entry = readdir(entries)) != NULL;)
    if (entry->d_name[0] != '.') unlink(path_of(entry->d_name));
  closedir(entries);
  CHECK(rmdir(folder) == 0);
}
