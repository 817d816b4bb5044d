/* Tokenizers: text to token ids and back, as the files of a model directory define it. Floor F3.
 * A tokenizer is immutable and may be used from any thread; an encoder or a text stream belongs to
 * one.
 *
 * `bytes`: a token is a byte. `bpe`: tokenizer.json with byte-level BPE; gives the ids that the
 * `tokenizers` library gives. `sentencepiece`: tokenizer.model, through its library.
 *
 * Invalid UTF-8 in the text: every maximal subpart of an ill-formed sequence counts as one U+FFFD
 * (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts"). For `bytes` every byte is
 * what it is.
 *
 * Unicode properties are those of PCRE2, normal forms those of libunistring (Unicode 14 on Debian
 * 12). The `tokenizers` library carries tables of other versions: ids can differ where a text has
 * characters that one of them does not know, or marks whose order changed between them. Of what
 * Unicode 14 has, properties agree in all; under NFC, which the library does by Unicode 9, later
 * marks and U+0EBA can differ beside other marks. */
#ifndef SHD_DAEMON_DATA_TOKENIZER_H
#define SHD_DAEMON_DATA_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/ids.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_tokenizer shd_tokenizer;

/* Contents of the files that make a tokenizer; borrowed for the call, NULL and 0 where there is
 * none. Exactly one of json and model is given. */
typedef struct shd_tokenizer_files {
    const char *path; /* for messages */
    const char *json; /* tokenizer.json */
    size_t json_size;
    const char *model; /* tokenizer.model */
    size_t model_size;
    const char *config; /* tokenizer_config.json beside it */
    size_t config_size;
    const char *added; /* added_tokens.json beside tokenizer.model */
    size_t added_size;
} shd_tokenizer_files;

#define SHD_TOKENIZER_FILE_MAX (64u << 20) /* bytes of one file */

shd_tokenizer *shd_tokenizer_bytes(void);

/* SHD_EDATA: a file that is not what it must be. SHD_EUNSUPPORTED: names what would change ids and
 * is not known here. */
int shd_tokenizer_create(const shd_tokenizer_files *files, shd_tokenizer **out, shd_error *err);

shd_tokenizer *shd_tokenizer_ref(shd_tokenizer *tok); /* one more owner */
void shd_tokenizer_free(shd_tokenizer *tok);          /* NULL is fine */

const char *shd_tokenizer_name(const shd_tokenizer *tok); /* "bytes" | "bpe" | "sentencepiece" */
/* So many hexadecimal digits of what the tokenizer was made from. No two files of different bytes
 * can be found that have the same: a cached token file is found by it. */
#define SHD_TOKENIZER_DIGEST 64
const char *shd_tokenizer_digest(const shd_tokenizer *tok);
uint32_t shd_tokenizer_vocab(const shd_tokenizer *tok); /* every id is below */
/* Begin and end of a text: tokenizer_config.json says so, else the model file, else the usual names
 * (<|begin_of_text|>, <s>, <bos>; <|end_of_text|>, <|endoftext|>, </s>, <eos>) where one of them is
 * an added token. -1: none. */
int32_t shd_tokenizer_bos(const shd_tokenizer *tok);
int32_t shd_tokenizer_eos(const shd_tokenizer *tok);
/* The id of a token by its exact name; -1: none. */
int32_t shd_tokenizer_find(const shd_tokenizer *tok, const char *name, size_t size);

/* What the file's post-processor puts before and after a text. Owned by the tokenizer. */
void shd_tokenizer_template(const shd_tokenizer *tok, const int32_t **before, size_t *n_before,
                            const int32_t **after, size_t *n_after);

/* ---- text to ids ---- */

/* Adds what the post-processor adds (for example <|begin_of_text|>). */
#define SHD_ENCODE_SPECIAL 1u

typedef struct shd_encoder shd_encoder;

shd_encoder *shd_encoder_create(shd_tokenizer *tok); /* takes an owner's share of `tok` */
void shd_encoder_free(shd_encoder *encoder);         /* NULL is fine */

/* Ends for the calls that follow. `cancel` (borrowed; NULL: none): once it is not 0, which any
 * thread may make it (relaxed), a call ends with SHD_ECANCELLED. `seconds` (0: none): a call that
 * takes longer, and longer than its text at 64 KiB a second, ends with SHD_EDATA: a pattern of the
 * file is to blame. Both are looked at every few milliseconds; patterns, texts and models that are
 * made to be slow can put it off for about a second on a usual machine. */
void shd_encoder_limit(shd_encoder *encoder, const int *cancel, double seconds);

/* Appends the ids of text[n] to `ids`. Names of added tokens in the text become those tokens.
 * SHD_EDATA when a pattern of the file takes too long on this text. A tokenizer.model gets a text
 * in parts, cut where it tokenizes words or lines apart, so that the ids are those of the whole;
 * one without merges (unigram) only where the text has more than 1 MiB, see shd_sp_cuts_at.
 * SHD_EDATA when more than 1 MiB (less where pieces are longer than 256 bytes) has no such place.
 */
int shd_encoder_run(shd_encoder *encoder, const char *text, size_t n, unsigned flags, shd_ids *ids,
                    shd_error *err);

/* The same for a text that comes in pieces, without what the post-processor adds: appends the ids
 * of text[0, *taken), which are what the whole text's ids begin with, whatever follows; the caller
 * presents the rest again with more behind it. *taken is 0 when nothing can be told yet. With
 * `last` everything is taken. Until then the encoder is this text's alone. */
int shd_encoder_piece(shd_encoder *encoder, const char *text, size_t n, int last, shd_ids *ids,
                      size_t *taken, shd_error *err);

/* ---- ids to text ---- */

/* Leaves out added tokens that are marked special, and control tokens. */
#define SHD_DECODE_SKIP_SPECIAL 1u

/* The exact bytes of ids[n], in *out (to be freed; not terminated). SHD_EINVAL for an id that is
 * no token. */
int shd_tokenizer_decode(const shd_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags,
                         char **out, size_t *out_size, shd_error *err);

/* Bytes of text that a token stands for; 0 where it is special or none. */
uint32_t shd_tokenizer_token_bytes(const shd_tokenizer *tok, int32_t id);

/* Tokens come one by one, text goes out in whole characters: always valid UTF-8, with U+FFFD for
 * what is ill-formed. Special tokens and ids that are no token give nothing. */
typedef struct shd_text_stream shd_text_stream;

/* `begins`: the first token begins a text, so a space that the tokenizer puts before every text is
 * taken off. */
shd_text_stream *shd_text_stream_create(shd_tokenizer *tok, int begins);
void shd_text_stream_free(shd_text_stream *stream); /* NULL is fine */
/* The characters that `id` completes; valid until the next call. */
const char *shd_text_stream_push(shd_text_stream *stream, int32_t id, size_t *n);
/* What is left when no more tokens come. */
const char *shd_text_stream_end(shd_text_stream *stream, size_t *n);

#ifdef __cplusplus
}
#endif
#endif
