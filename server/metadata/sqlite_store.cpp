#include <sqlite3.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/io/file.h"
#include "server/metadata/blocking_store.h"

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

struct CloseDatabase {
  void operator()(sqlite3* database) const noexcept { sqlite3_close_v2(database); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const noexcept { sqlite3_finalize(statement); }
};

// One prepared statement, bound and stepped by the functions below; reset by Done() or the next
// use.
using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

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

class SqliteStore final : public BlockingStore {
 public:
  static Result<std::unique_ptr<BlockingStore>> Open(const std::filesystem::path& path);

  Result<std::optional<KeyValue>> Get(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    const Reset reset(*get_);
    Bind(get_.get(), 1, key);
    const int status = sqlite3_step(get_.get());
    if (status == SQLITE_DONE) return std::optional<KeyValue>();
    if (status != SQLITE_ROW) return Failed("read a key");
    return std::optional(Row(get_.get()));
  }

  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    const std::lock_guard lock(mutex_);
    // One transaction, so that the revision is that of the rows.
    FFR_TRY(Run("BEGIN"));
    auto page = ListInTransaction(prefix, after, limit);
    FFR_TRY(Run("COMMIT"));
    return page;
  }

  Result<Outcome> TryCommit(const Commit& commit) override {
    const std::lock_guard lock(mutex_);
    FFR_TRY(Run("BEGIN IMMEDIATE"));
    auto outcome = CommitInTransaction(commit);
    if (outcome && outcome.value().committed) {
      auto committed = Run("COMMIT");
      if (committed) return outcome;
      outcome = std::move(committed).error();
    }
    // Also after an error in COMMIT, which leaves the transaction open (SQLITE_FULL). Where SQLite
    // has rolled back by itself there is nothing to roll back.
    if (sqlite3_get_autocommit(database_.get()) == 0) (void)Run("ROLLBACK");
    return outcome;
  }

 private:
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

  SqliteStore(Database database, std::filesystem::path path)
      : path_(std::move(path)), database_(std::move(database)) {}

  Error Failed(std::string_view tried) const {
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

  Result<void> Run(const char* sql) {
    if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
    return Failed(std::string(sql).substr(0, std::string_view(sql).find('\n')));
  }

  Result<Statement> Prepare(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    const int status = sqlite3_prepare_v3(database_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT,
                                          &statement, nullptr);
    if (status != SQLITE_OK) return Failed("prepare a statement");
    return Statement(statement);
  }

  Result<std::uint64_t> PragmaNumber(const char* sql) {
    const Statement statement = FFR_TRY(Prepare(sql));
    if (sqlite3_step(statement.get()) != SQLITE_ROW) return Failed(sql);
    return Number(statement.get(), 0);
  }

  Result<void> Prepare() {
    get_ = FFR_TRY(Prepare("SELECT key, value, mod_revision FROM entries WHERE key = ?1"));
    list_ =
        FFR_TRY(Prepare("SELECT key, value, mod_revision FROM entries WHERE key >= ?1 AND key < ?2 "
                        "ORDER BY key LIMIT ?3"));
    revision_of_ = FFR_TRY(Prepare("SELECT mod_revision FROM entries WHERE key = ?1"));
    put_ =
        FFR_TRY(Prepare("INSERT INTO entries VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE "
                        "SET value = ?2, mod_revision = ?3"));
    delete_ = FFR_TRY(Prepare("DELETE FROM entries WHERE key = ?1"));
    revision_ = FFR_TRY(Prepare("SELECT revision FROM counter"));
    count_ = FFR_TRY(Prepare("UPDATE counter SET revision = ?1"));
    return {};
  }

  Result<void> SetUp();
  Result<void> SyncWhatIsThere();
  Result<void> SyncFile(int which);

  Result<std::uint64_t> Revision() {
    const Reset reset(*revision_);
    if (sqlite3_step(revision_.get()) != SQLITE_ROW) return Failed("read the revision");
    return Number(revision_.get(), 0);
  }

  Result<Page> ListInTransaction(std::string_view prefix, std::string_view after,
                                 std::uint32_t limit) {
    Page page;
    page.revision = FFR_TRY(Revision());
    const Reset reset(*list_);
    // Keys are ASCII: the smallest one behind `after` is no smaller than it with a NUL, and all
    // that begin with `prefix` are smaller than it with a 0xFF.
    const std::string from = after < prefix ? std::string(prefix) : std::string(after) + '\0';
    const std::string end = std::string(prefix) + '\xFF';
    Bind(list_.get(), 1, from);
    Bind(list_.get(), 2, end);
    Bind(list_.get(), 3, std::uint64_t{limit} + 1);
    for (;;) {
      const int status = sqlite3_step(list_.get());
      if (status == SQLITE_DONE) return page;
      if (status != SQLITE_ROW) return Failed("list keys");
      if (page.entries.size() == limit) {
        page.more = true;
        return page;
      }
      page.entries.push_back(Row(list_.get()));
    }
  }

  Result<std::uint64_t> RevisionOf(std::string_view key) {
    const Reset reset(*revision_of_);
    Bind(revision_of_.get(), 1, key);
    const int status = sqlite3_step(revision_of_.get());
    if (status == SQLITE_DONE) return std::uint64_t{0};
    if (status != SQLITE_ROW) return Failed("compare a key");
    return Number(revision_of_.get(), 0);
  }

  Result<Outcome> CommitInTransaction(const Commit& commit) {
    const std::uint64_t now = FFR_TRY(Revision());
    for (const MetaStore::Compare& compare : commit.compares) {
      const std::uint64_t found = FFR_TRY(RevisionOf(compare.key));
      if (found != compare.mod_revision) return Outcome{false, now};
    }
    for (const std::string& key : commit.deletes) {
      const Reset reset(*delete_);
      Bind(delete_.get(), 1, key);
      if (sqlite3_step(delete_.get()) != SQLITE_DONE) return Failed("delete a key");
    }
    for (const Put& put : commit.puts) {
      const Reset reset(*put_);
      Bind(put_.get(), 1, put.key);
      Bind(put_.get(), 2, put.value);
      Bind(put_.get(), 3, now + 1);
      if (sqlite3_step(put_.get()) != SQLITE_DONE) return Failed("put a key");
    }
    const Reset reset(*count_);
    Bind(count_.get(), 1, now + 1);
    if (sqlite3_step(count_.get()) != SQLITE_DONE) return Failed("count the revision");
    return Outcome{true, now + 1};
  }

  const std::filesystem::path path_;
  std::mutex mutex_;
  Database database_;  // Before the statements, which go first.
  Statement get_, list_, revision_of_, put_, delete_, revision_, count_;
};

Result<std::unique_ptr<BlockingStore>> SqliteStore::Open(const std::filesystem::path& path) {
  sqlite3* opened = nullptr;
  const int status =
      sqlite3_open_v2(path.c_str(), &opened,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(opened);
  if (status != SQLITE_OK)
    return Error{ErrorCode::kIo, "cannot open " + path.string() + ": " + sqlite3_errstr(status),
                 database ? sqlite3_system_errno(database.get()) : ENOMEM};
  std::unique_ptr<SqliteStore> store(new SqliteStore(std::move(database), path));
  FFR_TRY(store->SetUp());
  FFR_TRY(store->Prepare());
  return std::unique_ptr<BlockingStore>(std::move(store));
}

Result<void> SqliteStore::SetUp() {
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
  FFR_TRY(Run("COMMIT"));
  // Small, and read whole at start anyway: damage shall not wait to be met.
  const Statement check = FFR_TRY(Prepare("PRAGMA quick_check(1)"));
  if (sqlite3_step(check.get()) != SQLITE_ROW) return Failed("check");
  const auto found = Blob(check.get(), 0);
  const std::string_view text(reinterpret_cast<const char*>(found.data()), found.size());
  if (text != "ok")
    return Error{ErrorCode::kCorruption,
                 path_.string() + " is damaged: " + std::string(text) +
                     "; restore it from a copy; the extents are not touched"};
  return SyncWhatIsThere();
}

// A process that was killed may have written a commit and not synced it. SQLite believes it all the
// same, and whoever asks again is told that it was committed.
Result<void> SqliteStore::SyncWhatIsThere() {
  FFR_TRY(SyncFile(SQLITE_FCNTL_JOURNAL_POINTER));
  FFR_TRY(SyncFile(SQLITE_FCNTL_FILE_POINTER));
  return SyncParentFolder(path_);
}

// By its own descriptors: to close another one would end its locks.
Result<void> SqliteStore::SyncFile(int which) {
  sqlite3_file* file = nullptr;
  const int found = sqlite3_file_control(database_.get(), "main", which, &file);
  if (found != SQLITE_OK || file == nullptr || file->pMethods == nullptr) return {};
  const int status = file->pMethods->xSync(file, SQLITE_SYNC_NORMAL);
  if (status == SQLITE_OK) return {};
  const int system_errno = sqlite3_system_errno(database_.get());
  return Error{ErrorCode::kIo, "cannot sync " + path_.string() + ": " + sqlite3_errstr(status),
               system_errno == 0 ? EIO : system_errno};
}

}  // namespace

Result<std::unique_ptr<BlockingStore>> OpenSqliteStore(const std::filesystem::path& path) {
  return SqliteStore::Open(path);
}

}  // namespace ffrecord::server
