/* What the files of the tokenizer share. Floor F3; private to daemon/data. */
#ifndef SHD_DAEMON_DATA_TOKENIZER_INTERNAL_H
#define SHD_DAEMON_DATA_TOKENIZER_INTERNAL_H

#include <stdatomic.h>
#include <uninorm.h>

#include "daemon/data/added.h"
#include "daemon/data/bpe.h"
#include "daemon/data/ends.h"
#include "daemon/data/regex.h"
#include "daemon/data/sentencepiece.h"
#include "daemon/data/sentencepiece_cuts.h"
#include "daemon/data/tokenizer.h"

#define SHD_MAX_NORMAL_FORMS 4
#define SHD_MAX_STAGES 16
#define SHD_MAX_VOCAB (1u << 24)

typedef enum shd_piece_kind {
    SHD_PIECE_NONE = 0, /* no token has this id */
    SHD_PIECE_TEXT,
    SHD_PIECE_SPECIAL /* stands for no text */
} shd_piece_kind;

/* What a token is in the text. */
typedef struct shd_piece {
    char *text; /* owned; NULL for NONE */
    uint32_t size;
    shd_piece_kind kind;
} shd_piece;

/* One cut of the text into words; what comes out goes into the next stage. */
typedef struct shd_stage {
    shd_regex *regex; /* NULL: puts a space before what does not begin with one */
    int drop_matches; /* what matches is left out */
    int drop_rest;    /* what does not match is left out */
} shd_stage;

struct shd_tokenizer {
    atomic_uint owners;
    const char *name;
    char digest[SHD_TOKENIZER_DIGEST + 1];
    uint32_t vocab;
    shd_piece *pieces; /* [vocab] */
    uint32_t pieces_capacity;
    int32_t bos, eos;
    shd_ids before, after; /* of a text, by the post-processor */
    int leading_space;     /* every text begins with a space of the tokenizer's own */

    /* bpe */
    shd_added *raw;        /* looked for in the text as it is */
    shd_added *normalized; /* looked for after normalisation */
    uninorm_t forms[SHD_MAX_NORMAL_FORMS];
    uint32_t n_forms;
    shd_stage stages[SHD_MAX_STAGES];
    uint32_t n_stages;
    shd_bpe *bpe;

    /* sentencepiece */
    shd_sp *sp;
    shd_sp_cuts cuts;
};

/* Gives id its piece; text[n] is copied. SHD_EDATA when the id is taken or too large. */
int shd_tokenizer_put_piece(shd_tokenizer *tok, int64_t id, const char *text, size_t n,
                            shd_piece_kind kind, shd_error *err);

/* Fills `tok` from tokenizer.json. */
int shd_tokenizer_read_json(shd_tokenizer *tok, const char *bytes, size_t n, shd_error *err);

/* Applies tokenizer_config.json (bytes may be NULL) to a tokenizer that is filled. */
int shd_tokenizer_read_config(shd_tokenizer *tok, const char *bytes, size_t n, shd_error *err);

/* Checks that added_tokens.json (bytes may be NULL) says nothing that tokenizer.model does not. */
int shd_tokenizer_read_added(const shd_tokenizer *tok, const char *bytes, size_t n, shd_error *err);

/* Form `form` of text[n], which is well-formed; to be freed. */
char *shd_normalize(uninorm_t form, const char *text, size_t n, size_t *size);

#endif
