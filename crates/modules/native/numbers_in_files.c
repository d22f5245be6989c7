/* Saving and loading numbers of the type long double, which Rust does not have. They are saved as text, since their bytes
 * differ between processors. */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The longest text of such a number is much shorter. */
#define MAX_TEXT 5120

void weft_modules_save_text(void *io, const char *text, size_t length);
size_t weft_modules_load_text(void *io, char *text, size_t capacity);

void weft_modules_native_save_long_double(void *io, long double number) {
    char text[64];
    int length;
    if (number != number) {
        length = snprintf(text, sizeof(text), "nan");
    } else if (number - number != 0) {
        length = snprintf(text, sizeof(text), number > 0 ? "inf" : "-inf");
    } else {
        length = snprintf(text, sizeof(text), "%La", number);
    }
    weft_modules_save_text(io, text, (size_t)length);
}

long double weft_modules_native_load_long_double(void *io) {
    char text[MAX_TEXT + 1];
    size_t length = weft_modules_load_text(io, text, MAX_TEXT);
    if (length == 0) return 0;
    text[length] = '\0';
    return strtold(text, NULL);
}
