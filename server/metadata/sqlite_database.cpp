#include "server/metadata/sqlite_database.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/file.h"

namespace ffrecord::server {
namespace {

// "FFRd", in the header of every file that is ours.
constexpr int kApplicationId = 0x46465264;
constexpr int kSchemaVersion = 1;

// Values compare bytewise, since keys are BLOBs: no collation has a say in their order.
constexpr const char* kSchema = R"(
CREATE TABLE entries(
  key BLOB NOT NULL PRIMARY KEY,
  value BLOB NOT NULL,
  mod_revision INTEGER NOT NULL
);
CREATE TABLE counter(only INTEGER PRIMARY KEY CHECK (only = 1), revision INTEGER NOT NULL);
INSERT INTO counter VALUES (1, 0);
)";

void Bind(sqlite3_stmt* statement, int place, std::span<const std::byte> bytes) {
  // A null pointer would bind NULL where an empty value is meant.
  const void* const data = bytes.empty() ? static_cast<const void*>("") : bytes.data();
  const int status = sqlite3_bind_blob64(statement, place, data, bytes.size(), SQLITE_STATIC);
  FFR_ASSERT(status == SQLITE_OK);
}
void Bind(sqlite3_stmt* statement, int place, std::string_view text) {
  Bind(statement, place, std::as_bytes(std::span(text)));
}
void Bind(sqlite3_stmt* statement, int place, std::uint64_t number) {
  const int status = sqlite3_bind_int64(statement, place, static_cast<sqlite3_int64>(number));
  FFR_ASSERT(status == SQLITE_OK);
}

std::span<const std::byte> Blob(sqlite3_stmt* statement, int column) {
  const void* const data = sqlite3_column_blob(statement, column);
  const int size = sqlite3_column_bytes(statement, column);
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(size)};
}
std::uint64_t Number(sqlite3_stmt* statement, int column) {
  return static_cast<std::uint64_t>(sqlite3_column_int64(statement, column));
}

MetaStore::KeyValue Row(sqlite3_stmt* statement) {
  const auto key = Blob(statement, 0);
  const auto value = Blob(statement, 1);
  return {{reinterpret_cast<const char*>(key.data()), key.size()},
          {value.begin(), value.end()},
          Number(statement, 2)};
}

// Resets a statement at the end of its use, and forgets what was bound.
class Reset {
 public:
  explicit Reset(sqlite3_stmt& statement) : statement_(statement) {}
  Reset(const Reset&) = delete;
  ~Reset() {
    sqlite3_reset(&statement_);
    sqlite3_clear_bindings(&statement_);
  }

 private:
  sqlite3_stmt& statement_;
};

}  // namespace

Error SqliteDatabase::Failed(std::string_view tried) const {
  const int code = sqlite3_errcode(database_.get());
  const int system_errno = sqlite3_system_errno(database_.get());
  const std::string message = "cannot " + std::string(tried) + " in " + path_.string() + ": " +
                              sqlite3_errmsg(database_.get());
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return {ErrorCode::kCorruption,
              message + "; restore the file from a copy; the extents are not touched"};
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return {ErrorCode::kConflict, message + "; another process holds it"};
    case SQLITE_FULL:
      return {ErrorCode::kIo, message + "; free some space", ENOSPC};
    case SQLITE_NOMEM:
      return {ErrorCode::kIo, message, ENOMEM};
    default:
      return {ErrorCode::kIo, message, system_errno == 0 ? EIO : system_errno};
  }
}

Result<void> SqliteDatabase::Run(const char* sql) {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  return Failed(std::string(sql).substr(0, std::string_view(sql).find('\n')));
}

Result<SqliteDatabase::Statement> SqliteDatabase::Prepare(const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const int status =
      sqlite3_prepare_v3(database_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (status != SQLITE_OK) return Failed("prepare a statement");
  return Statement(statement);
}

Result<std::uint64_t> SqliteDatabase::PragmaNumber(const char* sql) {
  const Statement statement = FFR_TRY(Prepare(sql));
  if (sqlite3_step(statement.get()) != SQLITE_ROW) return Failed(sql);
  return Number(statement.get(), 0);
}

Result<void> SqliteDatabase::PrepareAll() {
  put_ =
      FFR_TRY(Prepare("INSERT INTO entries VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE "
                      "SET value = ?2, mod_revision = ?3"));
  delete_ = FFR_TRY(Prepare("DELETE FROM entries WHERE key = ?1"));
  revision_ = FFR_TRY(Prepare("SELECT revision FROM counter"));
  count_ = FFR_TRY(Prepare("UPDATE counter SET revision = ?1"));
  return {};
}

Result<std::uint64_t> SqliteDatabase::Revision() {
  const Reset reset(*revision_);
  if (sqlite3_step(revision_.get()) != SQLITE_ROW) return Failed("read the revision");
  return Number(revision_.get(), 0);
}

Result<MetaHistory::Entries> SqliteDatabase::ReadAll() {
  MetaHistory::Entries entries;
  const Statement all =
      FFR_TRY(Prepare("SELECT key, value, mod_revision FROM entries ORDER BY key"));
  int status = sqlite3_step(all.get());
  for (; status == SQLITE_ROW; status = sqlite3_step(all.get())) {
    auto entry = std::make_shared<const MetaStore::KeyValue>(Row(all.get()));
    entries.emplace_hint(entries.end(), entry->key, std::move(entry));
  }
  if (status != SQLITE_DONE) return Failed("read all keys");
  return entries;
}

Result<void> SqliteDatabase::Change(const std::vector<MetaStore::Put>& puts,
                                    const std::vector<std::string>& deletes, std::uint64_t revision,
                                    bool& is_unknown) {
  return InTransaction([&] { return ChangeInTransaction(puts, deletes, revision); }, is_unknown);
}

// A commit whose sync has failed is taken back in memory, and stays in the log, whole: the next
// start would find it. The next commit goes to the same place there.
Result<void> SqliteDatabase::Settle() {
  const std::uint64_t revision = FFR_TRY(Revision());
  const auto write_same = [&]() -> Result<void> {
    // SQLite writes nothing where nothing has changed.
    for (const std::uint64_t number : {revision + 1, revision}) {
      Bind(count_.get(), 1, number);
      FFR_TRY(Step(*count_, "count the revision"));
    }
    return {};
  };
  bool is_unknown = false;
  return InTransaction(write_same, is_unknown);
}

Result<void> SqliteDatabase::InTransaction(const std::function<Result<void>()>& change,
                                           bool& is_unknown) {
  if (unfound_) return *unfound_;
  if (const auto untouched = files_->CheckUntouched(); !untouched) return Astray(untouched.error());
  FFR_TRY(Run("BEGIN IMMEDIATE"));
  auto changed = change();
  if (changed) {
    changed = Run("COMMIT");
    is_unknown = !changed;
  }
  // Also after an error in COMMIT, which leaves the transaction open (SQLITE_FULL). If SQLite has
  // rolled back already, there is nothing to roll back.
  if (sqlite3_get_autocommit(database_.get()) == 0) (void)Run("ROLLBACK");
  files_->Note();
  if (!changed) return changed;
  const auto in_place = files_->CheckInPlace();
  is_unknown = !in_place;
  // For good: what was made cannot be called undone when the files are there again.
  if (is_unknown) return unfound_.emplace(Astray(in_place.error()));
  return {};
}

// The database holds all that was ever committed, and perhaps no file does that has a name.
Error SqliteDatabase::Astray(const Error& why) {
  const auto rescued = Rescue();
  const std::string files = path_.string() + " and " + path_.filename().string() + "-wal";
  const std::string remedy =
      rescued
          ? "move " + files + " away, rename " + rescued.value().string() +
                ", which has all of the metadata, to " + path_.filename().string()
          : "put " + files + " back, or restore them from one copy (all of the metadata could " +
                "not be written elsewhere: " + rescued.error().message + ")";
  return {why.code,
          why.message + ", and what is written to it would be lost at the next start; stop the " +
              "daemon, " + remedy + ", and start it again",
          why.system_errno};
}

Result<std::filesystem::path> SqliteDatabase::Rescue() {
  if (rescued_) return *rescued_;
  if (files_->CheckInPlace()) return Error{ErrorCode::kConflict, "it may be a mixture by now"};
  std::filesystem::path path = path_.string() + ".rescued";
  const Statement vacuum = FFR_TRY(Prepare("VACUUM INTO ?1"));
  const int bound = sqlite3_bind_text(vacuum.get(), 1, path.c_str(), -1, SQLITE_STATIC);
  FFR_ASSERT(bound == SQLITE_OK);
  if (sqlite3_step(vacuum.get()) != SQLITE_DONE) return Failed("make a copy of what is");
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file || ::fsync(file.get()) != 0) return ErrnoError("sync", path, errno);
  FFR_TRY(SyncParentFolder(path));
  return rescued_.emplace(std::move(path));
}

Result<void> SqliteDatabase::Step(sqlite3_stmt& statement, const char* tried) {
  const Reset reset(statement);
  if (sqlite3_step(&statement) != SQLITE_DONE) return Failed(tried);
  return {};
}

Result<void> SqliteDatabase::ChangeInTransaction(const std::vector<MetaStore::Put>& puts,
                                                 const std::vector<std::string>& deletes,
                                                 std::uint64_t revision) {
  const auto erase = [this](const std::string& key) {
    Bind(delete_.get(), 1, key);
    return Step(*delete_, "delete a key");
  };
  for (const std::string& key : deletes) FFR_TRY(erase(key));
  for (const auto& put : puts) {
    if (put.lease != 0) {  // Only what it replaces is here.
      FFR_TRY(erase(put.key));
      continue;
    }
    Bind(put_.get(), 1, put.key);
    Bind(put_.get(), 2, put.value);
    Bind(put_.get(), 3, revision);
    FFR_TRY(Step(*put_, "put a key"));
  }
  Bind(count_.get(), 1, revision);
  return Step(*count_, "count the revision");
}

Result<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(const std::filesystem::path& path) {
  sqlite3* opened = nullptr;
  const int status =
      sqlite3_open_v2(path.c_str(), &opened,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(opened);
  if (status != SQLITE_OK)
    return Error{ErrorCode::kIo, "cannot open " + path.string() + ": " + sqlite3_errstr(status),
                 database ? sqlite3_system_errno(database.get()) : ENOMEM};
  std::unique_ptr<SqliteDatabase> made(new SqliteDatabase(std::move(database), path));
  FFR_TRY(made->SetUp());
  FFR_TRY(made->CheckDamage());
  FFR_TRY(made->SyncWhatIsThere());
  FFR_TRY(made->NoteFiles());
  FFR_TRY(made->PrepareAll());
  return made;
}

Result<void> SqliteDatabase::SetUp() {
  // Exclusive: the file belongs to one daemon, and no shared-memory file is needed beside it.
  FFR_TRY(Run("PRAGMA locking_mode = EXCLUSIVE"));
  FFR_TRY(Run("PRAGMA journal_mode = WAL"));
  FFR_TRY(Run("PRAGMA synchronous = FULL"));
  FFR_TRY(Run("BEGIN IMMEDIATE"));
  const std::uint64_t application = FFR_TRY(PragmaNumber("PRAGMA application_id"));
  const std::uint64_t version = FFR_TRY(PragmaNumber("PRAGMA user_version"));
  const std::uint64_t tables = FFR_TRY(PragmaNumber("SELECT count(*) FROM sqlite_schema"));
  if (tables == 0 && application == 0) {
    FFR_TRY(Run(kSchema));
    FFR_TRY(Run(("PRAGMA application_id = " + std::to_string(kApplicationId)).c_str()));
    FFR_TRY(Run(("PRAGMA user_version = " + std::to_string(kSchemaVersion)).c_str()));
  } else if (application != kApplicationId || version != kSchemaVersion) {
    return Error{ErrorCode::kCorruption,
                 path_.string() + " is not the metadata of an ffrecordd of this version (schema " +
                     std::to_string(version) + ", wanted " + std::to_string(kSchemaVersion) +
                     "); give another --data folder"};
  }
  return Run("COMMIT");
}

Result<void> SqliteDatabase::CheckDamage() {
  // Small, and read whole at start anyway: damage shall not wait to be met.
  const Statement check = FFR_TRY(Prepare("PRAGMA integrity_check(1)"));
  if (sqlite3_step(check.get()) != SQLITE_ROW) return Failed("check");
  const auto found = Blob(check.get(), 0);
  const std::string_view text(reinterpret_cast<const char*>(found.data()), found.size());
  if (text != "ok")
    return Error{ErrorCode::kCorruption,
                 path_.string() + " is damaged: " + std::string(text) +
                     "; restore it from a copy; the extents are not touched"};
  return {};
}

// A process that was killed may have written a commit and not synced it. SQLite believes it all the
// same, and a client that asks again gets the answer that it was committed.
Result<void> SqliteDatabase::SyncWhatIsThere() {
  FFR_TRY(SyncFile(SQLITE_FCNTL_JOURNAL_POINTER));
  FFR_TRY(SyncFile(SQLITE_FCNTL_FILE_POINTER));
  return SyncParentFolder(path_);
}

Result<void> SqliteDatabase::NoteFiles() {
  files_.emplace(path_);
  int has_moved = 0;  // The database, and not the log: only of that does SQLite know.
  sqlite3_file_control(database_.get(), "main", SQLITE_FCNTL_HAS_MOVED, &has_moved);
  if (has_moved == 0) return {};
  return Error{ErrorCode::kConflict, path_.string() + " became another file while it was opened"};
}

// By its own descriptors: to close another one would end its locks.
Result<void> SqliteDatabase::SyncFile(int which) {
  sqlite3_file* file = nullptr;
  const int found = sqlite3_file_control(database_.get(), "main", which, &file);
  if (found != SQLITE_OK || file == nullptr || file->pMethods == nullptr) return {};
  const int status = file->pMethods->xSync(file, SQLITE_SYNC_NORMAL);
  if (status == SQLITE_OK) return {};
  const int system_errno = sqlite3_system_errno(database_.get());
  return Error{ErrorCode::kIo, "cannot sync " + path_.string() + ": " + sqlite3_errstr(status),
               system_errno == 0 ? EIO : system_errno};
}

}  // namespace ffrecord::server
