/* The functions of the module API with a variable number of arguments, and those with a long double. */

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* A C library always has this function; it keeps the file from being empty until the first function is here. */
int weft_modules_format(char *buffer, size_t size, const char *format, va_list arguments) {
    return vsnprintf(buffer, size, format, arguments);
}
