/* The functions of the module API that take the arguments of a command by a format. They read the arguments that the
 * format names, and pass them to a function in Rust, which knows what the letters mean. */

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* One argument of the function: a pointer, a number, or a pointer and the length of what it points to. */
struct weft_argument {
    const void *pointer;
    long long number;
};

/* The number of arguments for which no memory is allocated. */
#define FEW_ARGUMENTS 32

typedef void *weft_command_function(void *context, const char *command, const char *format,
                                    struct weft_argument *arguments);

void *weft_modules_call(void *, const char *, const char *, struct weft_argument *);
void *weft_modules_replicate(void *, const char *, const char *, struct weft_argument *);
void *weft_modules_emit_aof(void *, const char *, const char *, struct weft_argument *);

static void read_arguments(const char *format, va_list list, struct weft_argument *arguments) {
    for (; *format; format++) {
        switch (*format) {
        case 'c':
        case 's':
            arguments->pointer = va_arg(list, const void *);
            arguments->number = 0;
            break;
        case 'l':
            arguments->pointer = NULL;
            arguments->number = va_arg(list, long long);
            break;
        case 'b':
        case 'v':
            arguments->pointer = va_arg(list, const void *);
            arguments->number = (long long)va_arg(list, size_t);
            break;
        case '!':
        case 'A':
        case 'R':
        case '3':
        case '0':
        case 'C':
        case 'S':
        case 'W':
        case 'M':
        case 'E':
        case 'D':
        case 'K':
        case 'X': continue;
        default:
            /* The function in Rust refuses the format, and uses no argument. */
            return;
        }
        arguments++;
    }
}

static void *apply(weft_command_function *function, void *context, const char *command, const char *format,
                   va_list list) {
    struct weft_argument few[FEW_ARGUMENTS];
    struct weft_argument *arguments = few;
    size_t length = strlen(format);
    if (length > FEW_ARGUMENTS) {
        arguments = malloc(length * sizeof(*arguments));
        if (!arguments) abort();
    }
    read_arguments(format, list, arguments);
    void *result = function(context, command, format, arguments);
    if (arguments != few) {
        int error = errno;
        free(arguments);
        errno = error;
    }
    return result;
}

void *weft_modules_native_call(void *context, const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    void *result = apply(weft_modules_call, context, command, format, list);
    va_end(list);
    return result;
}

int weft_modules_native_replicate(void *context, const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    void *result = apply(weft_modules_replicate, context, command, format, list);
    va_end(list);
    return result ? 0 : 1;
}

void weft_modules_native_emit_aof(void *io, const char *command, const char *format, ...) {
    va_list list;
    va_start(list, format);
    apply(weft_modules_emit_aof, io, command, format, list);
    va_end(list);
}

/* Valkey has these functions, but does not offer them to modules through GetApi. Its test modules link to them. */

int weft_modules_call_argv(void *, void **, int, int, const void *, void *);
int weft_modules_call_argv_abort(void *);
int weft_modules_reply_raw(void *, const char *, size_t);

int VM_CallArgv(void *context, void **words, int count, int flags, const void *handlers, void *data) {
    return weft_modules_call_argv(context, words, count, flags, handlers, data);
}

int VM_CallArgvAbort(void *handle) {
    return weft_modules_call_argv_abort(handle);
}

int VM_ReplyRaw(void *context, const char *bytes, size_t length) {
    return weft_modules_reply_raw(context, bytes, length);
}
