// Algorithms that browsers lack, bundled into the page: ML-KEM-768 and SHA3-256.
export { sha3_256 } from "@noble/hashes/sha3.js";
export { ml_kem768 } from "@noble/post-quantum/ml-kem.js";
