// SPDX-License-Identifier: Apache-2.0
// One record of a dataset as chat messages, whichever of the known formats it is in.
#ifndef FL_DATA_FORMATS_H
#define FL_DATA_FORMATS_H

#include "base/error.h"
#include "data/template.h"

#include <jansson.h>

// Starts as {0} and may be filled again and again; message_list_clear() it.
struct message_list {
    struct message *messages; // contents borrowed from the record or from joined
    size_t count, capacity;
    const json_t *tools; // the record's, or NULL
    json_t *parsed;      // tools that the record holds as text
    char *joined;        // a question made of two parts
};

// Fills list from a record, which must outlive it:
//   messages       {"messages": [{"role", "content", "loss"?, "reasoning_content"?,
//   "tool_calls"?}]},
//                  or the list alone
//   ShareGPT       {"conversations": [{"from", "value"}]}
//   question and   {"query": ..., "response": ...} under any of the names query, prompt, input,
//   answer         instruction, question, problem and response, answer, output, text, completion,
//                  content, with "history": [[question, answer], ...]; an instruction and an input
//                  are joined by a newline (Alpaca)
// each with "system" and "tools" beside it. A record of no known format, with a missing key,
// a wrong type or an unknown role is an error that names it and what to write.
int format_messages(const json_t *record, struct message_list *list, struct fl_error *e);

void message_list_clear(struct message_list *list);

#endif
