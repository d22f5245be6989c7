/* The functions on hashes with a variable number of arguments: pairs of pointers, and a null pointer at the end. They
 * collect the pairs, and pass them to a function in Rust. */

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

/* The name of a field, and its value or a place for it. */
struct weft_field {
    const void *name;
    void *value;
};

/* The number of fields for which no memory is allocated. */
#define FEW_FIELDS 16

typedef int weft_fields_function(void *key, int flags, const struct weft_field *fields, size_t count);

int weft_modules_hash_set(void *, int, const struct weft_field *, size_t);
int weft_modules_hash_get(void *, int, const struct weft_field *, size_t);

static size_t read_fields(va_list list, struct weft_field *fields, size_t space) {
    size_t count = 0;
    for (;;) {
        const void *name = va_arg(list, const void *);
        if (name == NULL) return count;
        void *value = va_arg(list, void *);
        if (count < space) {
            fields[count].name = name;
            fields[count].value = value;
        }
        count++;
    }
}

static int with_fields(weft_fields_function *run, void *key, int flags, va_list list) {
    struct weft_field few[FEW_FIELDS];
    struct weft_field *fields = few;
    va_list again;
    va_copy(again, list);
    size_t count = read_fields(list, few, FEW_FIELDS);
    if (count > FEW_FIELDS) {
        fields = malloc(count * sizeof *fields);
        if (fields == NULL) abort();
        read_fields(again, fields, count);
    }
    va_end(again);
    int result = run(key, flags, fields, count);
    if (fields != few) free(fields);
    return result;
}

int weft_modules_native_hash_set(void *key, int flags, ...) {
    va_list list;
    va_start(list, flags);
    int result = with_fields(weft_modules_hash_set, key, flags, list);
    va_end(list);
    return result;
}

int weft_modules_native_hash_get(void *key, int flags, ...) {
    va_list list;
    va_start(list, flags);
    int result = with_fields(weft_modules_hash_get, key, flags, list);
    va_end(list);
    return result;
}
