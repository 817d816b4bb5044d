/* Command lines: const tables say which flags and operands there are, one parser and one help
 * writer read them, so that neither can say what the other does not do. One thread. */
#ifndef SHD_CLIENT_OPTIONS_H
#define SHD_CLIENT_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "client/buf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a flag's value is, and what the parser stores at option->at. */
typedef enum shc_type {
    SHC_BOOL,     /* no value; int 1 */
    SHC_TEXT,     /* not empty; char * */
    SHC_RAW_TEXT, /* may be empty; char * */
    SHC_FILE,     /* a readable file that is not empty, made absolute; char * */
    SHC_PATH,     /* a path, made absolute; char * */
    SHC_PRESET,   /* a name, or a path made absolute: it has a slash, or is a directory, or a file
                     whose name has a dot; char * */
    SHC_U32,      /* uint32_t, min..max */
    SHC_U64,      /* uint64_t, min..max */
    SHC_NUM,      /* double, finite, min..max */
    SHC_OPT_NUM,  /* like SHC_NUM, but the value may be left out: then nothing is stored */
    SHC_U32_LIST, /* "1,2,3": uint32_t *, its length as size_t at option->has */
    SHC_ON_OFF,   /* "on" or "off"; int */
    SHC_SIZE,     /* bytes: "5GB", "80G", "512MiB", "1000"; uint64_t, min..max */
    SHC_RATE,     /* per second: "989T", "3.35T", "50GB", "1e12"; powers of 1000; double above 0 */
    SHC_SECONDS,  /* "5us", "0.1ms", "1s", "0"; double */
    SHC_TEXTS,    /* may be given again and again; char **, their number as size_t at option->has */
    SHC_WORDS,    /* like SHC_TEXTS, and each value is a list "a,b,c" */
} shc_type;

typedef struct shc_option {
    const char *name;  /* without dashes */
    const char *value; /* what the help calls it; NULL for SHC_BOOL */
    shc_type type;
    size_t at;       /* offset of the target in the table's struct */
    size_t has;      /* offset of an int that becomes `mark` when the flag is given */
    int mark;        /* 0: none */
    double min, max; /* accepted numbers; max 0: what the type holds */
    const char *help;
    char letter; /* -L means --name; 0: none */
} shc_option;

typedef struct shc_option_table {
    const shc_option *options;
    size_t n;
    size_t base; /* offset of the table's struct in the command's arguments */
} shc_option_table;

typedef struct shc_operand {
    const char *name; /* as the help calls it; NULL ends the list */
    size_t at;        /* offset of a char * in the command's arguments */
    int required;
} shc_operand;

enum { SHC_MAX_TABLES = 3, SHC_MAX_OPERANDS = 3 };

typedef struct shc_syntax {
    const char *name; /* of the command */
    const char *about;
    const shc_option_table *tables[SHC_MAX_TABLES + 1]; /* NULL ends */
    shc_operand operands[SHC_MAX_OPERANDS + 1];
} shc_syntax;

/* Memory that lives until the program ends, such as paths made absolute. */
typedef struct shc_keep {
    void **ptrs;
    size_t n;
} shc_keep;
void *shc_keep_ptr(shc_keep *keep, void *ptr); /* owns ptr; returns it */
void shc_keep_fini(shc_keep *keep);

/* Which flags of each table were given; by table and option index. */
typedef struct shc_given {
    unsigned char *flags[SHC_MAX_TABLES];
    int help; /* -h or --help */
} shc_given;

/* Reads argv[0..argc) into args (stored strings are those of argv or kept). 0, or -1 with a message
 * "what; what to do" that names flag and value. */
int shc_options_parse(const shc_syntax *syntax, int argc, char **argv, void *args, shc_keep *keep,
                      shc_given *given, shc_buf *message);
void shc_given_fini(shc_given *given);

/* Stores one value, as if given as --name text. Same results. */
int shc_option_set(const shc_option *option, const char *text, void *target, shc_keep *keep,
                   shc_buf *message);

/* The option of this name (n bytes, '_' equals '-'), or NULL. */
const shc_option *shc_option_find(const shc_option_table *table, const char *name, size_t n);

/* Appends usage and flags, wrapped to `width` columns. */
void shc_options_help(const shc_syntax *syntax, size_t width, shc_buf *out);

#ifdef __cplusplus
}
#endif
#endif
