// SPDX-License-Identifier: Apache-2.0
// One record of a dataset as chat messages, whichever of the known formats it is in.
#ifndef FL_DATA_FORMATS_H
#define FL_DATA_FORMATS_H

#include "base/error.h"
#include "data/template.h"

#include <jansson.h>

// Starts as {0} and may be filled again and again; its owner frees messages and joined.
struct message_list {
    struct message *messages; // contents borrowed from the record or from joined
    size_t count, capacity;
    char *joined; // a question made of two parts
};

// Fills list from a record, which must outlive it. A record of no known format, with a missing key,
// a wrong type or an unknown role is an error that names it and what to write.
int format_messages(const json_t *record, struct message_list *list, struct fl_error *e);

#endif
