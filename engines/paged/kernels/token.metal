// A step's token: negative where the host does not know it yet, and the step before has left it in last_tokens.

inline int known_token(int token, device const int* last_tokens) { return token < 0 ? last_tokens[-1 - token] : token; }
