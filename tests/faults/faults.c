/*
 * A preload library for `cargo xtask power-loss`: records the file operations of a server in one order, and lets chosen
 * ones fail. It concerns paths below one directory; every other call passes through.
 *
 *   FAULTS_DIR       the directory, absolute and without a symbolic link
 *   FAULTS_LOG       the file to which records are appended; without it nothing is recorded
 *   FAULTS_CONTROL   the file with the faults to inject; it may change at any time
 *   FAULTS_SYNC_US   the longest random delay of a sync in microseconds
 *   FAULTS_IGNORE    syncs that are neither recorded nor performed, as a planted defect: "data" (fdatasync),
 *                    "file" (fsync of a file) or "directory" (fsync of a directory)
 *
 * Order: a record is one `writev` to a file in append mode. The kernel serializes those, so the records of all threads,
 * processes and of the program that adds its own markers have one order. An operation and its record happen under a
 * mutex, and the record is written before the caller continues. A sync has two records: the begin, which says what it
 * covers, and the end.
 *
 * The control file: a generation number on the first line, then a line per fault: `OPERATION PATH SKIP COUNT EFFECT`.
 * OPERATION is open (for writing), write, truncate, sync (of a file), dirsync, rename, link, unlink, rmdir, mkdir, or any
 * of them: `any`. PATH is a part of the path, or `*`. The first SKIP matching operations succeed, the next COUNT fail (-1: all). EFFECT
 * is an error number, or `short` for a write of half of the bytes. Counters start again with each generation.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_FDS 4096
#define MAX_FAULTS 16

/* The header of a record. Two paths, or one path and data, follow it. */
struct record {
    uint32_t bytes; /* of what follows the header */
    uint8_t kind;
    uint8_t flags;
    uint16_t path_bytes; /* of the first path */
    uint64_t time_ns;
    uint64_t file; /* the number of the open file, or of the sync */
    int64_t offset;
};

enum { CREATED = 1, TRUNCATED = 2, DIRECTORY = 4 };

struct fault {
    char operation[16], path[128];
    long skip, count, matched;
    int error; /* 0: a short write */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char directory[2048];
static size_t directory_bytes;
static int log_fd = -1, control_fd = -1;
static long sync_us;
static const char *ignored = "";
static uint64_t files; /* the number of the last open file or sync */
static uint64_t open_files[MAX_FDS];
static char *open_paths[MAX_FDS];
static uint8_t open_flags[MAX_FDS];
static struct fault faults[MAX_FAULTS];
static int fault_count;
static long generation = -1;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "faults: no %s\n", name);
        _exit(99);
    }
    return found;
}

static void lock_all(void) { pthread_mutex_lock(&lock); }
static void unlock_all(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FAULTS_DIR");
    if (!path) return;
    snprintf(directory, sizeof directory, "%s", path);
    directory_bytes = strlen(directory);
    if ((path = getenv("FAULTS_LOG"))) log_fd = REAL(open)(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if ((path = getenv("FAULTS_CONTROL"))) control_fd = REAL(open)(path, O_RDONLY | O_CLOEXEC);
    if ((path = getenv("FAULTS_SYNC_US"))) sync_us = atol(path);
    if ((path = getenv("FAULTS_IGNORE"))) ignored = path;
    files = (uint64_t)getpid() << 32;
    pthread_atfork(lock_all, unlock_all, unlock_all);
}

/* Writes the path relative to the directory to `out`. Returns 0 if it is not below it. */
static int relative(const char *path, char *out, size_t size) {
    char full[4096];
    if (!directory_bytes || !path) return 0;
    if (path[0] == '/') {
        snprintf(full, sizeof full, "%s", path);
    } else {
        char here[2048];
        if (!getcwd(here, sizeof here)) return 0;
        while (path[0] == '.' && path[1] == '/') path += 2;
        snprintf(full, sizeof full, "%s%s%s", here, strcmp(path, ".") ? "/" : "", strcmp(path, ".") ? path : "");
    }
    size_t length = strlen(full);
    while (length > 1 && full[length - 1] == '/') full[--length] = 0;
    if (strncmp(full, directory, directory_bytes)) return 0;
    if (full[directory_bytes] == 0) {
        snprintf(out, size, ".");
        return 1;
    }
    if (full[directory_bytes] != '/') return 0;
    snprintf(out, size, "%s", full + directory_bytes + 1);
    return 1;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void record(uint8_t kind, uint8_t flags, uint64_t file, int64_t offset, const char *path, const void *data,
                   size_t bytes) {
    if (log_fd < 0) return;
    size_t path_bytes = path ? strlen(path) : 0;
    struct record head = {(uint32_t)(path_bytes + bytes), kind, flags, (uint16_t)path_bytes, now_ns(), file, offset};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)path, path_bytes}, {(void *)data, bytes}};
    ssize_t all = (ssize_t)(sizeof head + path_bytes + bytes);
    if (REAL(writev)(log_fd, parts, 3) != all) {
        fprintf(stderr, "faults: cannot write the log\n");
        _exit(99);
    }
}

static void read_faults(void) {
    char text[4096];
    ssize_t bytes = control_fd < 0 ? 0 : pread(control_fd, text, sizeof text - 1, 0);
    if (bytes <= 0) return;
    text[bytes] = 0;
    char *rest = text, *line = strsep(&rest, "\n");
    if (atol(line) == generation) return;
    generation = atol(line);
    for (fault_count = 0; rest && fault_count < MAX_FAULTS && (line = strsep(&rest, "\n"));) {
        struct fault *fault = &faults[fault_count];
        char effect[16];
        memset(fault, 0, sizeof *fault);
        if (sscanf(line, "%15s %127s %ld %ld %15s", fault->operation, fault->path, &fault->skip, &fault->count, effect) ==
            5) {
            fault->error = strcmp(effect, "short") ? atoi(effect) : 0;
            fault_count++;
        }
    }
}

/* Returns -1 if the operation succeeds, else its error; 0 for a short write. Under the lock. */
static int fault_of(const char *operation, const char *path) {
    read_faults();
    for (int index = 0; index < fault_count; index++) {
        struct fault *fault = &faults[index];
        if (strcmp(fault->operation, operation) && strcmp(fault->operation, "any")) continue;
        if (strcmp(fault->path, "*") && !strstr(path, fault->path)) continue;
        long number = fault->matched++;
        if (number >= fault->skip && (fault->count < 0 || number < fault->skip + fault->count)) {
            record('F', 0, 0, fault->error, path, operation, strlen(operation));
            return fault->error;
        }
    }
    return -1;
}

/* Fails the call under the lock, if a fault is due. */
#define FAIL_IF_DUE(operation, path, result)                                                                           \
    do {                                                                                                               \
        int error = fault_of(operation, path);                                                                         \
        if (error > 0) {                                                                                               \
            unlock_all();                                                                                              \
            errno = error;                                                                                             \
            return result;                                                                                             \
        }                                                                                                              \
    } while (0)

static int is_open(int fd) { return fd >= 0 && fd < MAX_FDS && open_files[fd]; }

static void note_open(int fd, const char *path, uint8_t flags) {
    if (fd < 0 || fd >= MAX_FDS) return;
    free(open_paths[fd]);
    open_files[fd] = ++files;
    open_paths[fd] = strdup(path);
    open_flags[fd] = flags;
    record('O', flags, open_files[fd], 0, path, NULL, 0);
}

static int open_in(const char *path, const char *inside, int flags, mode_t mode) {
    struct stat info;
    lock_all();
    if (flags & (O_CREAT | O_WRONLY | O_RDWR)) FAIL_IF_DUE("open", inside, -1);
    int exists = !stat(path, &info);
    int fd = REAL(open)(path, flags, mode);
    int error = errno;
    if (fd >= 0) {
        uint8_t what = 0;
        if (exists && S_ISDIR(info.st_mode)) what |= DIRECTORY;
        if (!exists) what |= CREATED;
        else if (flags & O_TRUNC) what |= TRUNCATED;
        note_open(fd, inside, what);
    }
    unlock_all();
    errno = error;
    return fd;
}

#define OPEN(name, ...)                                                                                                \
    do {                                                                                                               \
        char inside[2048];                                                                                             \
        mode_t mode = 0;                                                                                               \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                                           \
            va_list rest;                                                                                              \
            va_start(rest, flags);                                                                                     \
            mode = (mode_t)va_arg(rest, int);                                                                          \
            va_end(rest);                                                                                              \
        }                                                                                                              \
        if (relative(path, inside, sizeof inside)) return open_in(path, inside, flags, mode);                          \
        return REAL(name)(__VA_ARGS__, mode);                                                                          \
    } while (0)

int open(const char *path, int flags, ...) { OPEN(open, path, flags); }
int open64(const char *path, int flags, ...) { OPEN(open64, path, flags); }
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int openat(int at, const char *path, int flags, ...) {
    if (at != AT_FDCWD && path[0] != '/') {
        va_list rest;
        va_start(rest, flags);
        mode_t mode = (mode_t)va_arg(rest, int);
        va_end(rest);
        return REAL(openat)(at, path, flags, mode);
    }
    OPEN(open, path, flags);
}

int close(int fd) {
    lock_all();
    if (is_open(fd)) open_files[fd] = 0;
    int result = REAL(close)(fd);
    unlock_all();
    return result;
}

/* Records what a write has put at the end of the file position. */
static void note_write(int fd, int64_t offset, const void *data, ssize_t bytes) {
    if (bytes <= 0) return;
    if (offset < 0) offset = lseek(fd, 0, SEEK_CUR) - bytes;
    record('W', 0, open_files[fd], offset, NULL, data, (size_t)bytes);
}

ssize_t write(int fd, const void *data, size_t bytes) {
    if (!is_open(fd)) return REAL(write)(fd, data, bytes);
    lock_all();
    int error = fault_of("write", open_paths[fd]);
    if (error > 0) {
        unlock_all();
        errno = error;
        return -1;
    }
    ssize_t result = REAL(write)(fd, data, error == 0 ? bytes / 2 : bytes);
    error = errno;
    note_write(fd, -1, data, result);
    unlock_all();
    errno = error;
    return result;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
    if (!is_open(fd)) return REAL(pwrite)(fd, data, bytes, offset);
    lock_all();
    FAIL_IF_DUE("write", open_paths[fd], -1);
    ssize_t result = REAL(pwrite)(fd, data, bytes, offset);
    note_write(fd, offset, data, result);
    unlock_all();
    return result;
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) { return pwrite(fd, data, bytes, offset); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!is_open(fd)) return REAL(writev)(fd, parts, count);
    /* A short write is allowed: the caller continues with the rest. */
    for (int index = 0; index < count; index++)
        if (parts[index].iov_len) return write(fd, parts[index].iov_base, parts[index].iov_len);
    return 0;
}

static int truncate_open(int fd, off64_t bytes) {
    lock_all();
    FAIL_IF_DUE("truncate", open_paths[fd], -1);
    int result = REAL(ftruncate64)(fd, bytes);
    if (!result) record('T', 0, open_files[fd], bytes, NULL, NULL, 0);
    unlock_all();
    return result;
}

int ftruncate(int fd, off_t bytes) { return is_open(fd) ? truncate_open(fd, bytes) : REAL(ftruncate)(fd, bytes); }
int ftruncate64(int fd, off64_t bytes) { return is_open(fd) ? truncate_open(fd, bytes) : REAL(ftruncate64)(fd, bytes); }

static int sync_open(int fd, const char *operation, int (*sync)(int)) {
    static __thread unsigned seed;
    lock_all();
    int is_directory = open_flags[fd] & DIRECTORY;
    const char *kind = is_directory ? "directory" : strcmp(operation, "fsync") ? "data" : "file";
    if (!strcmp(ignored, kind)) {
        unlock_all();
        return 0;
    }
    FAIL_IF_DUE(is_directory ? "dirsync" : "sync", open_paths[fd], -1);
    uint64_t number = ++files;
    record('B', 0, open_files[fd], (int64_t)number, NULL, NULL, 0);
    if (!seed) seed = (unsigned)now_ns() | 1;
    unlock_all();
    if (sync_us > 0) usleep((useconds_t)(rand_r(&seed) % (unsigned)sync_us));
    int result = sync(fd), error = errno;
    if (!result) {
        lock_all();
        record('E', 0, number, 0, NULL, NULL, 0);
        unlock_all();
    }
    errno = error;
    return result;
}

int fsync(int fd) { return is_open(fd) ? sync_open(fd, "fsync", REAL(fsync)) : REAL(fsync)(fd); }
int fdatasync(int fd) { return is_open(fd) ? sync_open(fd, "fdatasync", REAL(fdatasync)) : REAL(fdatasync)(fd); }

/* A change of names, recorded if it succeeds. */
#define NAMES(operation, kind, first, second, call)                                                                    \
    do {                                                                                                               \
        char one[2048] = "", two[2048] = "";                                                                           \
        if (!relative(first, one, sizeof one)) return call;                                                            \
        const char *other = second;                                                                                    \
        if (other) relative(other, two, sizeof two);                                                                   \
        lock_all();                                                                                                    \
        FAIL_IF_DUE(operation, other ? two : one, -1);                                                                 \
        int result = call, error = errno;                                                                              \
        if (!result) record(kind, 0, 0, 0, one, two, strlen(two));                                                     \
        unlock_all();                                                                                                  \
        errno = error;                                                                                                 \
        return result;                                                                                                 \
    } while (0)

int rename(const char *from, const char *to) { NAMES("rename", 'R', from, to, REAL(rename)(from, to)); }
int link(const char *from, const char *to) { NAMES("link", 'L', from, to, REAL(link)(from, to)); }
int unlink(const char *path) { NAMES("unlink", 'U', path, NULL, REAL(unlink)(path)); }
int rmdir(const char *path) { NAMES("rmdir", 'U', path, NULL, REAL(rmdir)(path)); }
int mkdir(const char *path, mode_t mode) { NAMES("mkdir", 'M', path, NULL, REAL(mkdir)(path, mode)); }

/* Buffered files. Their writes do not go through `write` of this library: they are not recorded, but they can fail. */
static FILE *open_stream(const char *path, const char *inside, const char *mode) {
    lock_all();
    if (mode[0] != 'r') FAIL_IF_DUE("open", inside, NULL);
    FILE *stream = REAL(fopen64)(path, mode);
    if (stream && fileno(stream) < MAX_FDS) note_open(fileno(stream), inside, 0);
    unlock_all();
    return stream;
}

FILE *fopen(const char *path, const char *mode) {
    char inside[2048];
    if (relative(path, inside, sizeof inside)) return open_stream(path, inside, mode);
    return REAL(fopen)(path, mode);
}

FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }

int fclose(FILE *stream) {
    int fd = fileno(stream);
    lock_all();
    if (is_open(fd)) open_files[fd] = 0;
    unlock_all();
    return REAL(fclose)(stream);
}

size_t fwrite(const void *data, size_t size, size_t count, FILE *stream) {
    int fd = fileno(stream);
    if (is_open(fd)) {
        lock_all();
        FAIL_IF_DUE("write", open_paths[fd], 0);
        unlock_all();
    }
    return REAL(fwrite)(data, size, count, stream);
}

int fflush(FILE *stream) {
    int fd = stream ? fileno(stream) : -1;
    if (is_open(fd)) {
        lock_all();
        FAIL_IF_DUE("write", open_paths[fd], EOF);
        unlock_all();
    }
    return REAL(fflush)(stream);
}
