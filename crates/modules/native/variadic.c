/* The functions of the module API that format text, and those with a long double. They pass the text to a function in
 * Rust. */

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text up to this length is formatted without an allocation. */
#define SHORT_TEXT 512

/* The length of the longest long double without an exponent, with 17 digits after the point. */
#define LONG_DOUBLE_TEXT (5 * 1024)

void *weft_modules_create_string(void *context, const char *text, size_t length);
int weft_modules_reply_with_error(void *context, const char *text, size_t length, bool is_custom, bool is_counted);
int weft_modules_reply_with_number(void *context, const char *text, size_t length);
void weft_modules_log(void *context, const char *level, const char *text, size_t length);
void weft_modules_log_io_error(void *io, const char *level, const char *text, size_t length);
const char *weft_modules_string_bytes(const void *string, size_t *length);

/* Text in a buffer, or in allocated memory if it is long. */
struct text {
    char *start;
    size_t length;
    char buffer[SHORT_TEXT];
};

static void format_text(struct text *text, const char *format, va_list list) {
    va_list again;
    va_copy(again, list);
    int length = vsnprintf(text->buffer, sizeof(text->buffer), format, list);
    text->start = text->buffer;
    text->length = length < 0 ? 0 : (size_t)length;
    if (text->length >= sizeof(text->buffer)) {
        text->start = malloc(text->length + 1);
        if (!text->start) abort();
        vsnprintf(text->start, text->length + 1, format, again);
    }
    va_end(again);
}

static void free_text(struct text *text) {
    if (text->start != text->buffer) free(text->start);
}

void *weft_modules_native_create_string_printf(void *context, const char *format, ...) {
    struct text text;
    va_list list;
    va_start(list, format);
    format_text(&text, format, list);
    va_end(list);
    void *string = weft_modules_create_string(context, text.start, text.length);
    free_text(&text);
    return string;
}

int weft_modules_native_reply_with_error_format(void *context, const char *format, ...) {
    struct text text;
    va_list list;
    va_start(list, format);
    format_text(&text, format, list);
    va_end(list);
    int result = weft_modules_reply_with_error(context, text.start, text.length, false, true);
    free_text(&text);
    return result;
}

int weft_modules_native_reply_with_custom_error_format(void *context, int is_counted, const char *format, ...) {
    struct text text;
    va_list list;
    va_start(list, format);
    format_text(&text, format, list);
    va_end(list);
    int result = weft_modules_reply_with_error(context, text.start, text.length, true, is_counted != 0);
    free_text(&text);
    return result;
}

void weft_modules_native_log(void *context, const char *level, const char *format, ...) {
    struct text text;
    va_list list;
    va_start(list, format);
    format_text(&text, format, list);
    va_end(list);
    weft_modules_log(context, level, text.start, text.length);
    free_text(&text);
}

void weft_modules_native_log_io_error(void *io, const char *level, const char *format, ...) {
    struct text text;
    va_list list;
    va_start(list, format);
    format_text(&text, format, list);
    va_end(list);
    weft_modules_log_io_error(io, level, text.start, text.length);
    free_text(&text);
}

/* Prints a number with 17 digits: without an exponent and trailing zeros, or as C's %Lg does. Returns the length. */
static size_t print_long_double(char *buffer, long double number, bool is_plain) {
    if (isinf(number)) return (size_t)snprintf(buffer, LONG_DOUBLE_TEXT, "%s", number > 0 ? "inf" : "-inf");
    if (isnan(number)) return (size_t)snprintf(buffer, LONG_DOUBLE_TEXT, "nan");
    size_t length = (size_t)snprintf(buffer, LONG_DOUBLE_TEXT, is_plain ? "%.17Lf" : "%.17Lg", number);
    if (!is_plain) return length;
    while (buffer[length - 1] == '0') length--;
    if (buffer[length - 1] == '.') length--;
    if (length == 2 && buffer[0] == '-' && buffer[1] == '0') {
        buffer[0] = '0';
        length = 1;
    }
    return length;
}

void *weft_modules_native_create_string_from_long_double(void *context, long double number, int is_plain) {
    char buffer[LONG_DOUBLE_TEXT];
    return weft_modules_create_string(context, buffer, print_long_double(buffer, number, is_plain != 0));
}

int weft_modules_native_reply_with_long_double(void *context, long double number) {
    char buffer[LONG_DOUBLE_TEXT];
    return weft_modules_reply_with_number(context, buffer, print_long_double(buffer, number, true));
}

int weft_modules_native_string_to_long_double(const void *string, long double *result) {
    size_t length;
    const char *bytes = weft_modules_string_bytes(string, &length);
    if (length == 0 || length >= LONG_DOUBLE_TEXT || isspace((unsigned char)bytes[0])) return 1;
    /* A byte 0 follows the bytes of every string. */
    char *end;
    errno = 0;
    long double number = strtold(bytes, &end);
    bool is_out_of_range = errno == ERANGE && (isinf(number) || number == 0);
    if (end != bytes + length || is_out_of_range || errno == EINVAL || isnan(number)) return 1;
    if (result) *result = number;
    return 0;
}
